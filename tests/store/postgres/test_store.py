"""The PostgreSQL store's server: lost connections, outages, poolers, schemas, clocks, secrets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager

import psycopg
import pytest

from parley.database.postgres.connection import Address, explain
from parley.model.tasks import TaskArtifactUpdateEvent, TaskState
from parley.store.events import LoggedEvent, RecordKind, now_ms
from parley.store.postgres.schema import SCHEMA
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.claims import Lease, LivenessGate
from parley.store.protocols.errors import PrunedElsewhere, StoreUnavailable
from parley.store.protocols.task_log import TaskQuery
from parley.store.sql import migrations
from tests.kit.records import (
    SCOPE,
    addition,
    all_events,
    chunk,
    creation,
    message,
    numbers,
    private_records,
    received,
    status,
)
from tests.kit.services.postgres import PgBouncer, PostgresServer, pooled, running
from tests.kit.services.proxy import line
from tests.kit.waiting import let_time_pass, until

pytestmark = [pytest.mark.anyio, pytest.mark.service]

ROUNDS = int(os.environ.get("PARLEY_KILLS", "4"))
TASKS = 12
WINDOW = 8


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server that may be killed and cut off; it is restored after each test."""
    with running() as server:
        yield server


@asynccontextmanager
async def opened(
    url: str, published: list[LoggedEvent] | None = None, **options: object
) -> AsyncIterator[PostgresTaskStore]:
    store = PostgresTaskStore(url, **options)  # type: ignore[arg-type]
    await store.open((published if published is not None else []).extend)
    try:
        yield store
    finally:
        await store.close()


class Load:
    """Writes numbered chunks to tasks, as fast as a window of appends allows, until stopped."""

    def __init__(self, store: PostgresTaskStore, published: list[LoggedEvent]) -> None:
        self.store = store
        self.published = published
        self.is_over = False
        self.written = 0
        self.failures: list[Exception] = []
        self.acknowledged: dict[str, int] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write during the context; at its end, await and count all appends."""
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for n in range(TASKS):
                group.create_task(self._write(f"t{n}"))
            group.create_task(self._bring())
            try:
                yield
            finally:
                self.is_over = True
        await self.count()

    async def go_on(self, appends: int = 200) -> None:
        """Wait until a number of further appends are acknowledged."""
        enough = self.written + appends
        await until(lambda: self.written >= enough)

    async def _write(self, name: str) -> None:
        await self.store.append(creation(name))
        seq = 1
        window: list[Awaitable[int]] = []
        try:
            while not self.is_over:
                text = f"{name}:{seq}"
                kind = TaskState.WORKING if seq % 5 == 0 else None
                event = status(name, kind, text) if kind else chunk(name, text)
                window.append(self.store.append(addition(name, seq, event)))
                seq += 1
                if len(window) >= WINDOW:
                    await self._acknowledged(name, window.pop(0))
            while window:
                await self._acknowledged(name, window.pop(0))
        except Exception as error:
            self.failures.append(error)
            await asyncio.gather(*window, return_exceptions=True)

    async def _acknowledged(self, name: str, append: Awaitable[int]) -> None:
        seq = await append
        assert seq == self.acknowledged.get(name, 1) + 1
        self.acknowledged[name] = seq
        self.written += 1

    async def _bring(self) -> None:
        """Add a message to a context; the database numbers its history."""
        n = 0
        while not self.is_over:
            await self.store.keep(SCOPE, "context", exchange=[message(str(n))])
            n += 1
        said = await self.store.history(SCOPE, "context", 1000)
        assert [m.text for m in said] == [str(k) for k in range(max(0, n - 1000), n)]

    async def count(self) -> None:
        """Compare all acknowledged and published appends with the log."""
        assert self.failures == []
        for name, seq in self.acknowledged.items():
            events = await all_events(self.store, name)
            assert numbers(events) == list(range(1, seq + 1))
            assert [_text(event) for event in events[1:]] == [f"{name}:{n}" for n in range(1, seq)]
            assert [r for r in self.published if r.task_id == name] == events
            record = await self.store.load(name)
            assert record is not None
            assert record.seq == seq
        page = await self.store.list(TaskQuery(scope=SCOPE))
        assert page.total == len(page.tasks) == TASKS


def _text(record: LoggedEvent) -> str:
    if record.kind is RecordKind.ARTIFACT:
        assert isinstance(record.event, TaskArtifactUpdateEvent)
        return str(record.event.artifact.parts[0].text)
    return record.event.status.message.text  # type: ignore[union-attr]


async def test_connections_that_are_ended_in_the_middle_lose_and_repeat_nothing(
    mortal: PostgresServer,
) -> None:
    published: list[LoggedEvent] = []
    async with opened(mortal.new_url(), published) as store:
        load = Load(store, published)
        async with load.running():
            for _ in range(ROUNDS * 2):
                await load.go_on()
                assert await asyncio.to_thread(mortal.cut_connections) >= 1


async def test_a_server_that_is_killed_loses_and_repeats_nothing(mortal: PostgresServer) -> None:
    published: list[LoggedEvent] = []
    async with opened(mortal.new_url(), published) as store:
        load = Load(store, published)
        async with load.running():
            for _ in range(ROUNDS):
                await load.go_on()
                await asyncio.to_thread(mortal.kill)
                await asyncio.to_thread(mortal.start)
            await load.go_on()
            await asyncio.to_thread(mortal.restart)
            await load.go_on()


async def test_connections_that_break_before_the_answer_lose_and_repeat_nothing(
    postgres: PostgresServer,
) -> None:
    """The writer's row shows whether the append was committed."""
    published: list[LoggedEvent] = []
    chance = random.Random(os.urandom(8))
    async with line(postgres.port) as between:
        url = postgres.new_url().replace(f":{postgres.port}/", f":{between.port}/")
        async with opened(url, published) as store:
            load = Load(store, published)
            async with load.running():
                for n in range(ROUNDS * 5):
                    await load.go_on(chance.randint(1, 100))
                    if n % 2:
                        between.cut()
                    else:  # in the middle of a response, after the handshake of a new connection
                        between.drop_after, accepted = chance.randint(500, 6000), between.accepted
                        between.cut()
                        await until(lambda since=accepted: between.accepted >= since + 2)
                        between.drop_after = None
                between.heal()


async def test_results_whose_answer_is_lost_are_recovered(postgres: PostgresServer) -> None:
    """Commits arrive, responses do not: each append is durable once, and its writer knows."""
    published: list[LoggedEvent] = []
    async with line(postgres.port) as between:
        url = postgres.new_url().replace(f":{postgres.port}/", f":{between.port}/")
        async with opened(url, published) as store:
            await store.append(creation("t"))
            for seq in range(1, 1 + ROUNDS):
                [before] = postgres.execute("SELECT pg_current_wal_insert_lsn()::text")
                between.delay = 0.15
                appending = asyncio.ensure_future(store.append(addition("t", seq, chunk("t", "x"))))
                await let_time_pass(0.2)  # the statement has arrived, its response is on the way
                between.cut()
                between.delay = 0.0
                assert await appending == seq + 1
                assert before
            assert numbers(await all_events(store, "t")) == list(range(1, ROUNDS + 2))
            assert numbers([r for r in published if r.sub == 0]) == list(range(1, ROUNDS + 2))


async def test_claims_whose_answer_is_lost_are_recovered(postgres: PostgresServer) -> None:
    async with line(postgres.port) as between:
        url = postgres.new_url()
        async with (
            opened(url.replace(f":{postgres.port}/", f":{between.port}/")) as store,
            opened(url) as other,
        ):
            for n in range(ROUNDS):
                await other.append(creation(f"t{n}", release=True))
                between.delay = 0.15
                adopting = asyncio.ensure_future(store.claim_batch(SCOPE.agent, 10))
                await let_time_pass(0.2)
                between.cut()
                between.delay = 0.0
                assert [task.task_id for task in await adopting] == [f"t{n}"]
                assert f"t{n}" in await store.held_tasks()


async def test_no_reader_waits_longer_than_the_timeout(postgres: PostgresServer) -> None:
    """Readers queued behind timed-out readers do not wait again."""
    async with line(postgres.port) as between:
        url = postgres.new_url().replace(f":{postgres.port}/", f":{between.port}/")
        async with opened(url, timeout=2.0) as store:
            await store.append(creation("t"))
            between.freeze()
            async with asyncio.timeout(60):  # sequentially it would take at least 250 s
                failures = await asyncio.gather(
                    *[store.load("t") for _ in range(1000)], return_exceptions=True
                )
            assert {type(failure) for failure in failures} == {StoreUnavailable}
            between.thaw()
            async with asyncio.timeout(60):
                record = None
                while record is None:
                    with contextlib.suppress(StoreUnavailable):
                        record = await store.load("t")


@pytest.mark.parametrize("fault", ["stopped", "paused", "cut off"])
async def test_a_database_that_is_away_is_known_to_be(mortal: PostgresServer, fault: str) -> None:
    async with line(mortal.port) as between:
        url = mortal.new_url().replace(f":{mortal.port}/", f":{between.port}/")
        async with opened(url, lease=Lease(0.5), timeout=0.5) as store, asyncio.timeout(60):
            assert store.unavailable_reason == ""
            if fault == "stopped":
                await asyncio.to_thread(mortal.stop)
            elif fault == "paused":
                mortal.pause()
            else:
                between.freeze()
            try:
                await until(lambda: store.unavailable_reason)
                assert re.fullmatch(
                    r"the store has been silent for \d+ seconds", store.unavailable_reason
                )
            finally:
                if fault == "stopped":
                    await asyncio.to_thread(mortal.start)
                elif fault == "paused":
                    mortal.go_on()
                between.thaw()
            await until(lambda: not store.unavailable_reason)


async def test_only_what_the_database_refuses_fails(postgres_url: str) -> None:
    """One unstorable text, in the middle of a group."""
    async with opened(postgres_url) as store:
        results = await asyncio.gather(
            store.append(creation("a")),
            store.append(creation("b", context_id="not \x00 a text")),
            store.append(creation("c")),
            return_exceptions=True,
        )
        assert [type(result).__name__ for result in results] == ["int", "StoreUnavailable", "int"]
        assert (await store.list(TaskQuery(scope=SCOPE))).total == 2


async def test_replicas_behind_a_pooler_never_run_what_another_prepared(
    postgres: PostgresServer,
) -> None:
    """The pooler gives their server connections to any next client."""
    with pooled(postgres) as pooler:
        await _use_by_turns(pooler)


async def _use_by_turns(pooler: PgBouncer) -> None:
    async with opened(pooler.new_url()) as one, opened(pooler.new_url()) as two:
        for n in range(30):
            await asyncio.gather(one.append(creation(f"one{n}")), two.append(creation(f"two{n}")))
            found = await asyncio.gather(
                one.list(TaskQuery(scope=SCOPE)), two.load(f"two{n}"), one.load(f"two{n}")
            )
            assert found[0].total == n + 1
            assert found[1] is not None
            assert found[2] is None


async def test_the_clock_is_the_databases(postgres_url: str) -> None:
    async with (
        opened(postgres_url, clock=lambda: now_ms() - 3_600_000) as behind,
        opened(postgres_url, clock=lambda: now_ms() + 3_600_000) as ahead,
        opened(postgres_url) as right,
    ):
        assert abs(behind.now() - ahead.now()) < 10_000
        await behind.append(creation("t"))
        await ahead.append(creation("u"))
        page = await right.list(TaskQuery(scope=SCOPE))
        assert [task.id for task in page.tasks] == ["u", "t"]
        assert [replica.alive for replica in await right.replicas()] == [True] * 3


async def test_the_time_does_not_jump_with_the_clock_of_the_machine(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_url, lease=Lease(3600)) as store:  # the next heartbeat is far away
        before, real = store.now(), time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + 3_600 * 10**9)
        assert 0 <= store.now() - before < 1_800_000


async def test_a_dead_replica_expires_although_the_clock_of_the_database_was_set_back(
    postgres: PostgresServer, postgres_url: str
) -> None:
    schema = postgres_url.partition("?schema=")[2]
    lease = Lease(0.5)
    async with (
        opened(postgres_url, lease=lease) as one,
        opened(postgres_url, lease=lease) as other,
        asyncio.timeout(60),
    ):
        await one.append(creation("t"))
        assert one._heartbeat is not None
        await asyncio.to_thread(one._heartbeat.stop)
        later = f"UPDATE {schema}.replicas SET seen_at = seen_at + 3600000 WHERE id = '{{}}'"
        await asyncio.to_thread(postgres.execute, later.format(one.replica))
        while not await other.unclaimed():
            await let_time_pass(0.05)
        assert [a.task_id for a in await other.claim_batch(SCOPE.agent, 10)] == ["t"]


async def test_no_replica_expires_because_the_clock_of_the_database_was_set_forward(
    postgres: PostgresServer, postgres_url: str
) -> None:
    schema = postgres_url.partition("?schema=")[2]
    behind = 0
    async with (
        opened(postgres_url, lease=Lease(3600), clock=lambda: now_ms() - behind) as one,
        opened(postgres_url, lease=Lease(3600)) as other,
    ):
        await other.append(creation("t"))
        heartbeat = one._heartbeat
        assert heartbeat is not None
        heartbeat.stop()
        heartbeat._gate = TouchesAtOnce(Lease(3600))
        await asyncio.to_thread(heartbeat._beat)
        # Simulates a database clock that jumps by hours between two heartbeats of each replica.
        behind = 7_200_000
        before = f"UPDATE {schema}.replicas SET seen_at = seen_at - {behind}"
        await asyncio.to_thread(postgres.execute, before)
        await asyncio.to_thread(heartbeat._beat)
        assert not await one.unclaimed()
        await other.append(addition("t", 1, chunk("t", "x")))
        # By the next heartbeat the clock is stable again, and a silent replica counts as dead.
        await asyncio.to_thread(heartbeat._beat)
        assert await one.unclaimed()


class TouchesAtOnce(LivenessGate):
    """Lets a replica judge others from its second heartbeat on."""

    def felt(self, now: float) -> bool:
        is_first = self._since is None
        super().felt(now)
        return not is_first


async def test_replicas_that_start_at_once_make_the_schema_once(postgres_url: str) -> None:
    stores = [PostgresTaskStore(postgres_url) for _ in range(5)]
    await asyncio.gather(*[store.open(lambda records: None) for store in stores])
    await stores[0].append(creation("t"))
    assert await stores[4].load("t") is not None
    await asyncio.gather(*[store.close() for store in stores])


async def refusal(url: str, **options: object) -> str:
    with pytest.raises(StoreUnavailable) as failure:
        await PostgresTaskStore(url, **options).open(lambda records: None)  # type: ignore[arg-type]
    return str(failure.value)


async def test_a_schema_that_this_version_does_not_know_is_refused(
    postgres: PostgresServer, postgres_url: str
) -> None:
    async with opened(postgres_url):
        pass
    schema = Address.of(postgres_url).schema
    later = f"INSERT INTO {schema}.schema_versions VALUES (98, 'more', 1, now())"
    postgres.execute(later)
    async with opened(postgres_url) as store:  # it only adds something
        await store.append(creation("t"))
    postgres.execute(f"INSERT INTO {schema}.schema_versions VALUES (99, 'other', 99, now())")
    reason = await refusal(postgres_url)
    assert "version 99" in reason
    assert "later version of Parley" in reason


async def test_a_schema_is_left_alone_without_migrates(postgres_url: str) -> None:
    assert "parley store migrate" in await refusal(postgres_url, migrates=False)
    known = [each.version for each in migrations("postgres")]
    assert [done.version for done in SCHEMA.migrate(Address.of(postgres_url))] == known
    assert SCHEMA.migrate(Address.of(postgres_url)) == []
    async with opened(postgres_url, migrates=False) as store:
        await store.append(creation("t"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://me:secret-word@127.0.0.1:1/tasks", "cannot be reached"),
        ("postgresql://me:secret-word@127.0.0.1:{port}/none", "no such database; create it"),
        ("postgresql://none:secret-word@127.0.0.1:{port}/postgres", "the user may not use it"),
    ],
)
async def test_errors_of_opening_hold_no_password(
    postgres: PostgresServer, url: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        url = url.replace("{port}", str(postgres.port)).replace("me:", f"{postgres.user}:")
        store = PostgresTaskStore(url)
        with pytest.raises(StoreUnavailable, match=said) as failure:
            await store.open(lambda records: None)
    shown = str(failure.value) + repr(Address.of(url)) + caplog.text
    assert "secret" not in shown
    assert "127.0.0.1" in str(failure.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('FATAL: password authentication failed for user "p"', "user or the password is wrong"),
        ("fe_sendauth: no password supplied", "user or the password is wrong"),
        ('FATAL: database "x" does not exist', "no such database; create it"),
        ('FATAL: role "p" does not exist', "the user may not use it"),
        ('FATAL: no pg_hba.conf entry for host "10.0.0.1"', "the user may not use it"),
        ("FATAL: sorry, too many clients already", "raise max_connections"),
        ("Connection refused", "cannot be reached"),
    ],
)
def test_the_reason_why_a_server_takes_no_connection_is_known(text: str, reason: str) -> None:
    error = psycopg.OperationalError(f"connection failed: {text}\n\tand more")
    explained = str(explain(error, Address.of("postgresql://p@db/x")))
    assert reason in explained
    assert "\n" not in explained


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret%zz@host/tasks",
        "postgresql://me:secret@host/tasks?colour=red",
        "postgresql://me:secret@host/tasks?schema=Not one",
        "postgresql://me:secret@host/tasks?schema=pg_mine",
        "postgresql://me:secret@host/tasks?schema=",
        "postgresql://me:secret@[host/tasks",
    ],
)
def test_an_address_that_makes_no_sense_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="postgresql://") as refusal:
        PostgresTaskStore(url)
    assert "secret" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_an_address_is_libpqs_with_a_schema() -> None:
    address = Address.of("postgresql://me@db:6000/tasks?sslmode=require&schema=mine")
    assert address.schema == "mine"
    assert "sslmode=require" in address.conninfo
    assert "schema" not in address.conninfo
    assert address.name == "postgresql://db:6000/tasks?schema=mine"
    assert Address.of("postgresql:///tasks").schema == "parley"


async def test_every_query_of_a_running_server_uses_an_index(
    postgres: PostgresServer, postgres_url: str
) -> None:
    others = _connections(postgres)
    async with opened(postgres_url) as store:
        tasks = [creation(f"t{n}", at=n, turn_open=False) for n in range(3000)]
        await asyncio.gather(*[store.append(task) for task in tasks])
        schema = Address.of(postgres_url).schema
        postgres.execute(f"ANALYZE {schema}.tasks")
        before = _scans(postgres, schema)
        await store.list(TaskQuery(scope=SCOPE, before=(500, "t500")))
        await store.list(TaskQuery(scope=SCOPE, state=TaskState.SUBMITTED, not_after=2990))
        await store.list(TaskQuery(scope=SCOPE, context_id="context-t7"))
        await store.load("t7")
        await store.events("t7", 0, 10)
        await private_records(store, "t7")
        await store.append(addition("t7", 1, chunk("t7", "x")))
        await store.append(addition("t8", None, received("x")))
        await store.claim_batch(SCOPE.agent, 5)
        await store.unclaimed()
        await store.first_queued(SCOPE.agent)
        await store.awaiting_input(SCOPE.agent, 100, 10)
        await store.positions(["t1", "t2"])
        await store.prune(SCOPE.agent, 100, 10)

        # The server counts with a delay, at the latest when a connection ends.
        await store.close()
        async with asyncio.timeout(20):
            await until(lambda: _connections(postgres) <= others)
        assert _scans(postgres, schema) == before


def _connections(postgres: PostgresServer) -> set[object]:
    """Return the connections of stores, possibly including other tests' stores."""
    return {
        pid
        for (pid,) in postgres.execute(
            "SELECT pid FROM pg_stat_activity "
            "WHERE application_name = 'parley' AND backend_type = 'client backend'"
        )
    }


def _scans(postgres: PostgresServer, schema: str) -> Sequence[object]:
    return postgres.execute(
        "SELECT relname, seq_scan FROM pg_stat_user_tables "
        f"WHERE schemaname = '{schema}' AND relname IN ('tasks', 'log') ORDER BY relname"
    )


# -- removing old data -----------------------------------------------------------------------------


@asynccontextmanager
async def pruning_held_up(
    postgres: PostgresServer, url: str, store: PostgresTaskStore, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[asyncio.Task[int]]:
    """A store that prunes, and waits for rows that another connection has locked."""
    monkeypatch.setattr("parley.store.postgres.background.LOCK_SECONDS", 60)
    schema = Address.of(url).schema
    for n in range(20):
        await store.append(creation(f"old{n}", status(f"old{n}", TaskState.COMPLETED)))
    with psycopg.connect(Address.of(url).conninfo) as other:
        other.execute(f"SELECT 1 FROM {schema}.tasks WHERE ended_at IS NOT NULL FOR UPDATE")
        pruning = asyncio.create_task(store.prune(SCOPE.agent, store.now() + 100_000, 100))
        async with asyncio.timeout(20):
            await until(
                lambda: postgres.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                    f"AND query LIKE '%DELETE FROM {schema}.tasks%'"
                )
            )
        yield pruning


async def test_no_writer_waits_for_pruning(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.new_url()
    async with opened(url) as one, opened(url) as two, asyncio.timeout(60):
        async with pruning_held_up(postgres, url, one, monkeypatch) as pruning:
            for n, store in enumerate([one, two] * 3):
                name = f"new{n}"
                assert await store.append(creation(name)) == 1
                assert await store.append(addition(name, 1, chunk(name, "x"))) == 2
                assert await store.claim(name) == 2
                end = addition(name, 2, status(name, TaskState.COMPLETED), epoch=2)
                assert await store.append(end) == 3
                assert await store.claim_batch(SCOPE.agent, 10) == []
            # One replica at a time: the other skips its pruning.
            with pytest.raises(PrunedElsewhere):
                await two.prune(SCOPE.agent, two.now() + 100_000, 100)
            assert not pruning.done()
        assert await pruning == 26
        assert await two.prune(SCOPE.agent, two.now() + 100_000, 100) == 0
        assert (await one.list(TaskQuery(scope=SCOPE))).total == 0


async def test_a_store_that_is_closed_does_not_wait_for_pruning(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.new_url()
    async with opened(url) as store, pruning_held_up(postgres, url, store, monkeypatch) as pruning:
        async with asyncio.timeout(20):
            await store.close()
        with pytest.raises(StoreUnavailable):
            await pruning
    async with opened(url) as store, asyncio.timeout(20):
        removed = 0
        while removed < 20:  # its server may need a moment
            with contextlib.suppress(PrunedElsewhere):
                removed += await store.prune(SCOPE.agent, store.now() + 100_000, 100)
            await let_time_pass(0.02)
