"""The store of a fleet: PostgreSQL, which any number of replicas use at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import psycopg

from parley.store.events import LoggedEvent, steady_clock
from parley.store.lease import Lease
from parley.store.postgres.batch import PostgresBatch
from parley.store.postgres.connection import Address, Link, Texts, explain, may_pass, texts
from parley.store.postgres.heartbeat import Heartbeat
from parley.store.postgres.migrations import look, migrate, sql_for
from parley.store.postgres.prune import (
    PRUNED_AT_ONCE,
    Pruner,
    prune,
    prune_contexts,
    prune_receipts,
)
from parley.store.postgres.writer import BackgroundOperation, Fence, PostgresBatchWriter
from parley.store.sql import queries
from parley.store.sql_engine.batch import columns, head_of
from parley.store.sql_engine.gil_yield import GilYielder
from parley.store.sql_engine.group_commit import GroupWriter
from parley.store.sql_engine.reader_pool import ReaderPool
from parley.store.sql_engine.sql_store import (
    LAST,
    STATES,
    SqlTaskStore,
    list_values,
    places_of,
    stored_in,
)
from parley.store.task_store import (
    Claimed,
    Committed,
    LogPosition,
    PrunedElsewhere,
    PushRecord,
    Replica,
    Scope,
    StoreUnavailable,
    TaskPage,
    TaskQuery,
)

T = TypeVar("T")

READERS = 4
"""How many threads read, each with a connection: reading costs round trips more than time."""

PATIENCE = 15.0
"""For how many seconds reads and writes wait while the database is away."""

CLOSE_SECONDS = 1.0
"""How long the removal of old tasks may take to stop when the store is closed."""

_SQL = queries("postgres", "pieces.sql", "queries.sql", "replicas.sql", "prune.sql")


class PostgresTaskStore(SqlTaskStore[Link]):
    """Keeps task logs in a PostgreSQL database, which other replicas use at the same time.

    ``url`` is one that libpq knows; its ``?schema=`` names the schema in which the tables lie
    (``parley``). What is acknowledged is as durable as the server's ``synchronous_commit`` says. A
    replica of which nothing is heard for ``lease`` loses its tasks to others. ``patience`` is for
    how many seconds a read or a write waits while the database is away. With ``migrates`` the
    schema is brought up to date when the store is opened, else one that is older is refused.
    ``clock`` returns milliseconds since 1970; it is corrected by the database's. The usual one goes
    on steadily when the machine's is set.

    Raises ``ValueError`` for what is no such URL.
    """

    def __init__(
        self,
        url: str,
        *,
        lease: Lease | None = None,
        patience: float = PATIENCE,
        migrates: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> None:
        if not patience > 0:
            raise ValueError(f"patience is a number of seconds above 0, not {patience!r}")
        self._address = Address.of(url)
        super().__init__(self._address.name)
        self._sql = sql_for(self._address, _SQL)
        self._lease = lease or Lease()
        self._patience = patience
        self._migrates = migrates
        self._clock = clock or steady_clock()
        self._heart: Heartbeat | None = None
        self._pruner: Pruner | None = None
        self._pruning: ReaderPool[Pruner] | None = None

    @property
    def is_shared(self) -> bool:
        """Whether other replicas may use what the store keeps at the same time."""
        return True

    @property
    def has_operators(self) -> bool:
        """Whether ``parley store`` can change what it keeps while it is open."""
        return True

    @property
    def unavailable_reason(self) -> str:
        """Why the database cannot be reached just now, empty while it can be."""
        silence = self._heart.silence if self._heart is not None else 0
        return f"the store was not heard of for {silence:.0f} seconds" if silence else ""

    def now(self) -> int:
        """Return the present moment by the database's clock, in ms."""
        return self._clock() + (self._heart.offset if self._heart else 0)

    async def open(self, committed: Committed) -> None:
        """Make the store ready: look at its schema, and make this replica known.

        Raises ``StoreUnavailable``, which says what is wrong with the database and what to do.
        """
        if self._loop is not None:
            raise RuntimeError("the store is open already")
        loop = asyncio.get_running_loop()
        self._replica = uuid4().hex
        desk = await asyncio.to_thread(self._prepare)
        lender = GilYielder(loop)
        self._writing = GroupWriter(desk, committed=committed, lender=lender)
        sources = [_Source(self._address, self._patience) for _ in range(READERS)]
        self._reading = ReaderPool(sources, lender=lender)
        self._pruner = Pruner(self._address, self._sql)
        self._pruning = ReaderPool([self._pruner], lender=lender)
        if self._heart is not None:
            self._heart.start()
        self._loop = loop

    def _prepare(self) -> PostgresBatchWriter:
        if self._migrates:
            migrate(self._address)
        else:
            versions = look(self._address)
            if versions.missing:
                raise StoreUnavailable(
                    f"{self._address.name} has schema version {versions.found}, and this version "
                    f"of Parley needs {versions.known}: bring it up to date with `parley store "
                    "migrate`"
                )
        self._heart = heart = Heartbeat(
            self._address, self._sql, replica=self._replica, lease=self._lease, clock=self._clock
        )
        desk = PostgresBatchWriter(
            self._address,
            self._sql,
            replica=self._replica,
            lives_for=round(self._lease.time_to_live * 1000),
            now=self.now,
            patience=self._patience,
        )
        try:
            heart.set_clock()
            desk.open()
        except psycopg.Error as error:
            desk.link.drop()
            heart.drop()
            raise explain(error, self._address) from None
        return desk

    async def close(self) -> None:
        """Finish what is under way, free what is held, and let go. Idempotent."""
        if self._loop is None or self._writing is None or self._reading is None:
            return
        self._loop = None
        if self._pruner is not None and self._pruning is not None:
            self._pruner.stop()
            with suppress(TimeoutError):  # it may be connecting: nobody waits for that
                await asyncio.wait_for(self._pruning.close(), CLOSE_SECONDS)
        await self._reading.close()
        if self._heart is not None:
            await asyncio.to_thread(self._heart.stop)
        await self._writing.close()

    async def list(self, query: TaskQuery) -> TaskPage:
        """Return one page of tasks."""
        return await self._read(partial(_list, sql=self._sql, query=query))

    async def claim_batch(self, agent: str, limit: int) -> Sequence[Claimed]:
        """Claim tasks that nobody holds and that have work left, those first in line first."""
        adopted: Sequence[Claimed] = await self._errand(
            partial(_adopt, agent=agent, limit=limit), _adopted
        )
        return adopted

    async def positions(self, task_ids: Sequence[str]) -> Sequence[LogPosition]:
        """Return where the logs of tasks stand; nothing for those that are not there."""
        return places_of(await self._rows("positions", (texts(task_ids),)))

    async def replicas(self) -> Sequence[Replica]:
        """Return the replicas that the store knows, this one among them."""
        return [
            Replica(id=id, seen_at=seen_at, alive=alive, holds=holds)
            for id, seen_at, alive, holds in await self._rows("replicas", ())
        ]

    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Keep a value for a context; ``None`` removes it."""
        agent, tenant, owner = columns(scope)
        values: dict[str, Any] = {"agent": agent, "tenant": tenant, "owner": owner}
        values |= {"context_id": context_id}
        values |= {"name": key, "value": value, "at": self.now()}
        name = "remove_value" if value is None else "put_value"
        await self._errand(lambda desk: desk.link.execute(self._sql[name], values) and None)

    async def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> bool:
        """Keep a value for a context if it still has the ``expected`` one."""
        if expected is None and value is None:
            return await self.get_value(scope, context_id, key) is None
        agent, tenant, owner = columns(scope)
        values: dict[str, Any] = {"agent": agent, "tenant": tenant, "owner": owner}
        values |= {"context_id": context_id, "name": key, "at": self.now()}
        values |= {"expected": expected, "value": value}
        is_kept: bool = await self._errand(
            partial(_compare_and_set, values=values), lambda desk, told: bool(told)
        )
        return is_kept

    async def move_push(self, task_id: str, push: PushRecord) -> bool:
        """Note how far a webhook was told, and its state, if this replica still tells it."""
        is_moved: bool = await self._do(partial(_move_push, task_id=task_id, push=push))
        return is_moved

    async def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it is there."""
        sql, values = self._sql["remove_push"], (task_id, push_id)
        await self._errand(lambda desk: desk.link.execute(sql, values) and None)

    async def claim_pushes(self, agent: str, limit: int) -> Sequence[tuple[str, bool]]:
        """Take over the active push notification configurations of tasks that nobody holds."""
        found: Sequence[tuple[str, bool]] = await self._errand(
            partial(_adopt_pushes, agent=agent, limit=limit), _adopted_pushes
        )
        return found

    async def prune(self, agent: str, ended_before: int, limit: int) -> int:
        """Remove up to ``limit`` tasks that ended before a moment (ms), with all that is theirs.

        Done in pieces, on a connection of its own: no writer waits for it. See ``TaskStore``.
        """
        if self._loop is None or self._pruning is None:
            raise self._closed()
        values = {"agent": agent, "before": ended_before}
        removed = 0
        try:
            while removed < limit:
                most = min(limit - removed, PRUNED_AT_ONCE)
                count = await self._pruning.run(partial(prune, values=values, limit=most))
                removed += count
                if not count:
                    break
            for rest in (prune_receipts, prune_contexts):
                while await self._pruning.run(partial(rest, values=values)):
                    pass
        except PrunedElsewhere:
            if not removed:
                raise
        return removed

    async def _errand(
        self,
        run: Callable[[PostgresBatchWriter], Any],
        recover: Callable[[PostgresBatchWriter, Sequence[int]], Any] | None = None,
    ) -> Any:
        return await self._do(BackgroundOperation(run, recover))

    async def _rows(
        self, name: str, values: Sequence[Any] | Mapping[str, Any]
    ) -> Sequence[Sequence[Any]]:
        return await self._read(lambda link: link.rows(self._sql[name], values))

    def _texts(self, texts_: Sequence[str]) -> Texts:
        return texts(texts_)


class _Source:
    """A connection to read by. What is read is read again when the connection was lost.

    Nobody waits longer than for ``patience`` seconds while the database is away, however many wait:
    those who have are refused without a further try.
    """

    def __init__(self, address: Address, patience: float) -> None:
        self.name = address.name
        self._address = address
        self._patience = patience
        self._link = Link(address, patience=patience)
        self._failure: StoreUnavailable | None = None

    def read(self, function: Callable[[Link], T], asked_at: float) -> T:
        deadline = asked_at + self._patience
        pause = 0.02
        if self._failure is not None and time.monotonic() > deadline:
            raise StoreUnavailable(*self._failure.args)
        while True:
            self._link.patience = max(1.0, deadline - time.monotonic())
            try:
                result = function(self._link)
            except psycopg.Error as error:
                if not may_pass(error):
                    raise explain(error, self._address) from None
                if time.monotonic() + pause > deadline:
                    self._failure = explain(error, self._address)
                    raise self._failure from None
            else:
                self._failure = None
                return result
            time.sleep(pause)
            pause = min(0.5, pause * 2)

    def close(self) -> None:
        self._link.drop()


def _list(link: Link, sql: dict[str, str], query: TaskQuery) -> TaskPage:
    values = list_values(query)
    states = [values["state"]] if values["state"] else STATES
    values["states"] = texts(states)
    if query.context_id:
        found, total = sql["found_in_context"], sql["count_in_context"]
    else:
        in_state = sql["found_in_state"]
        found = " UNION ALL ".join([in_state.replace("{state}", name) for name in states])
        between = sql["count_between"]
        if query.status_after is not None:
            total = between.replace("{first}", "%(first)s").replace("{last}", "%(last)s")
        elif query.not_after is not None:
            # What is later than a walk through the pages is little: it is counted and taken off.
            later = between.replace("{first}", "%(last)s + 1").replace("{last}", str(LAST))
            total = f"({sql['total']}) - ({later})"
        else:
            total = sql["total"]
    [(*_, count, matching), *rows] = link.rows(
        sql["list"].replace("{found}", found).replace("{total}", total), values
    )
    tasks = [stored_in(task_id, stored).task() for task_id, *stored, _, _ in rows]
    return TaskPage(tuple(tasks), total=count, more=matching > len(tasks))


def _move_push(
    batch: PostgresBatch, task_id: str, push: PushRecord
) -> tuple[Any, Sequence[LoggedEvent]]:
    return batch.move_push(task_id, push), ()


def _own(desk: PostgresBatchWriter) -> dict[str, Any]:
    """Return what says which replica it is that does something."""
    return {"replica": desk.replica, "generation": desk.generation, "grp": desk.grp + 1}


def _adopt(desk: PostgresBatchWriter, agent: str, limit: int) -> list[Claimed]:
    rows = desk.link.rows(desk.sql["claim_batch"], {**_own(desk), "agent": agent, "limit": limit})
    return _taken(desk, rows)


def _adopted(desk: PostgresBatchWriter, keys: Sequence[int]) -> list[Claimed]:
    """Return what was adopted when the answer was lost."""
    rows = desk.link.rows(desk.sql["claimed"], (list(keys), desk.replica))
    return [] if not rows else _taken(desk, rows)


def _taken(desk: PostgresBatchWriter, rows: Sequence[Sequence[Any]]) -> list[Claimed]:
    if not rows:
        raise Fence
    adopted = []
    for version, *row in rows:
        if version is not None:
            head = head_of(row)
            desk.know(head, version)
            adopted.append(Claimed(head.task_id, head.epoch, head.place))
    return adopted


def _compare_and_set(desk: PostgresBatchWriter, values: dict[str, Any]) -> bool:
    rows = desk.link.rows(desk.sql["compare_and_set"], {**_own(desk), **values})
    if not rows:
        raise Fence
    return bool(rows[0][0])


def _adopt_pushes(desk: PostgresBatchWriter, agent: str, limit: int) -> list[tuple[str, bool]]:
    rows = desk.link.rows(desk.sql["claim_pushes"], {**_own(desk), "agent": agent, "limit": limit})
    if not rows:
        raise Fence
    return [(task_id, is_behind) for task_id, is_behind in rows if task_id is not None]


def _adopted_pushes(desk: PostgresBatchWriter, keys: Sequence[int]) -> list[tuple[str, bool]]:
    """Return whose webhooks were adopted when the answer was lost."""
    rows = desk.link.rows(desk.sql["claimed_pushes"], (list(keys),))
    return [(task_id, True) for (task_id,) in rows]
