"""The audit records of a running server, and the actor of each change in the logs of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Execution, Rights, Turn
from parley.host.server_audit import ServerAudit, flat
from parley.host.store_urls import open_admin, open_store
from parley.model.errors import TooManyRequestsError, UnauthenticatedError
from parley.model.tasks import TaskState
from parley.security import Bearer
from parley.security.failures import Failures
from parley.security.signing import keys as key_module
from parley.security.signing.keys import SigningKeys
from parley.store.audit.reading import fact_of
from parley.store.audit.trail import AuditEntry, AuditFilter, AuditLine, verify
from parley.store.events import LoggedEvent, RecordKind, logged
from parley.store.memory import MemoryTaskStore
from tests.kit.waiting import let_time_pass, until
from tests.security.signing.key_sets import key_file, key_set, private_jwk

pytestmark = pytest.mark.anyio

EVERYTHING = AuditFilter()
ADA = Caller(id="ada", issuer="https://id.example", authenticated=True, client="app")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tasks.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


def shop(**options: Any) -> Agent:
    agent = Agent("Shop", **options)

    @agent.skill
    async def buy(turn: Turn, text: str) -> str:
        if text == "secret report":
            await turn.authorize("read", resource="report")
        answer = await turn.ask("How many?")
        return f"{answer} sold"

    return agent


def entries(url: str, content: bool = False, **given: Any) -> list[AuditEntry]:
    with open_admin(url).audit() as reading:
        return list(reading.entries(AuditFilter(**given), content=content))


def whole(url: str) -> bool:
    with open_admin(url).audit() as reading:
        return verify(reading.chain()).is_intact


def started(url: str) -> list[dict[str, Any]]:
    return [dict(each.details) for each in entries(url, kind="server.started")]


@pytest.mark.slow
async def test_a_start_is_recorded_with_what_changed(url: str) -> None:
    async with parley.connect(parley.asgi(shop(), store=url)):
        pass
    async with parley.connect(parley.asgi(shop(), store=url)):
        pass
    settings = parley.Settings(max_streams=7)
    changed = shop(rights=Rights(policy=lambda access: True), limits=["9/minute per caller"])
    app = parley.asgi(changed, store=url, settings=settings)
    async with parley.connect(app):
        pass
    first, second, third = started(url)
    assert first["version"] == parley.__version__
    assert "changed" not in first
    assert second["changed"] == {}
    assert third["changed"]["settings.max_streams"] == [10_000, 7]
    assert third["changed"]["agents.shop.policy"] == [False, True]
    assert third["changed"]["agents.shop.limits"] == ["", "9/minute per caller"]
    assert first["digest"] == second["digest"] != third["digest"]
    [migrated] = entries(url, kind="store.migrated")
    assert any(each.endswith(" audit") for each in migrated.details["migrations"])
    assert len(entries(url, kind="server.stopped")) == 3
    assert whole(url)


class SlowToAnswer(MemoryTaskStore):
    """A store that delays the reply to an append until ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.appended = asyncio.Event()
        self.go = asyncio.Event()

    async def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        lines = await super().append_audit(entries)
        self.appended.set()
        await self.go.wait()
        return lines


async def test_a_start_that_is_cancelled_is_recorded_with_its_end() -> None:
    store = SlowToAnswer()
    await store.open(lambda records: None)
    audit = ServerAudit(store, Failures())
    starting = asyncio.create_task(audit.start("both", []))
    await store.appended.wait()
    starting.cancel()
    await let_time_pass(0)
    store.go.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    lines = await store.read_audit(EVERYTHING)
    assert [line.kind for line in lines] == ["server.started", "server.stopped"]


async def test_a_stop_that_is_cancelled_closes_everything() -> None:
    store = SlowToAnswer()
    await store.open(lambda records: None)
    store.go.set()
    before = asyncio.all_tasks()
    audit = ServerAudit(store, Failures(), retention=timedelta(days=1))
    await audit.start("both", [])
    store.go.clear()
    store.appended.clear()
    stopping = asyncio.create_task(audit.stop())
    await store.appended.wait()
    stopping.cancel()
    await let_time_pass(0)
    store.go.set()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert asyncio.all_tasks() == before
    lines = await store.read_audit(EVERYTHING)
    assert [line.kind for line in lines] == ["server.started", "server.stopped"]


async def test_a_start_names_the_keys_that_sign(url: str) -> None:
    for kid in ("first", "second"):
        keys = SigningKeys.parse(key_set(private_jwk(kid=kid)))
        async with parley.connect(parley.asgi(shop(), store=url, signing_keys=keys)):
            pass
    _, second = started(url)
    assert second["changed"] == {"signing_keys": ["first ES256", "second ES256"]}


async def test_a_start_with_many_changes_names_the_role_and_the_settings(url: str) -> None:
    for made in ("one", "two"):
        store = open_store(url)
        await store.open(lambda records: None)
        audit = ServerAudit(store, Failures())
        audit.settings = {f"setting_{n}": made * 20 for n in range(60)}
        await audit.start("both", [])
        await audit.stop()
        await store.close()
    _, second = started(url)
    assert second["role"] == "both"
    assert len(second["settings"]) == 60
    assert list(second["changed"]) == ["digest"]


async def test_changed_signing_keys_are_recorded_by_who_read_them(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_module, "RELOAD_SECONDS", 0)
    path = key_file(tmp_path / "keys.json", private_jwk(kid="a"))
    keys = SigningKeys.from_file(path)
    async with parley.connect(parley.asgi(shop(), store=url, signing_keys=keys)):
        key_file(tmp_path / "new", private_jwk(kid="b")).replace(path)
        await asyncio.to_thread(lambda: keys.signers)  # as a webhook signer does
        path.write_text("{}")
        assert keys.signers[0].kid == "b"
    key_file(path, private_jwk(kid="c"))
    assert keys.signers[0].kid == "c"  # the server has stopped: no audit record
    done, failed = entries(url, kind="signing_key.reloaded")
    assert (done.subject, done.outcome, done.actor) == ("b", "done", "server")
    assert done.details["signs"] == ["b"]
    assert (failed.subject, failed.outcome) == ("b", "failed")
    assert "no list of" in failed.details["reason"]
    assert whole(url)


async def test_no_secret_is_recorded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_SECRET_KEY", "s3cret-of-the-environment-which-is-long")
    agent = Agent("Shop", security=Bearer(lambda token: ADA if token == "s3cret-token" else None))

    @agent.skill
    async def buy(turn: Turn, text: str) -> str:
        await turn.ask("How many?")
        return "sold"

    app = parley.asgi(agent, store=url)
    async with parley.connect(app, bearer="s3cret-token") as client:
        await client.send("s3cret-message")
    async with parley.connect(app, bearer="s3cret-wrong") as client:
        with pytest.raises(UnauthenticatedError):
            await client.send("s3cret-message")
    text = repr(entries(url))
    assert "auth.failed" in text
    assert "s3cret" not in text
    assert "s3cret-message" in repr(entries(url, content=True))


async def test_refused_credentials_are_recorded_once_for_an_address(url: str) -> None:
    agent = Agent("Shop", security=Bearer(lambda token: None))

    @agent.skill
    async def buy(turn: Turn, text: str) -> str:
        return "sold"

    app = parley.asgi(agent, store=url, settings=parley.Settings(auth_failures_per_minute=3))
    async with parley.connect(app, bearer="wrong", retries=0) as client:
        for _ in range(6):
            with pytest.raises((UnauthenticatedError, TooManyRequestsError)):
                await client.send("x")
    [entry] = entries(url, kind="auth")
    assert (entry.kind, entry.outcome, bool(entry.address)) == ("auth.failed", "refused", True)
    assert entry.details["refused"] == 3
    assert entry.details["throttled"] >= 3
    assert entry.details["schemes"] == ["bearer"]
    assert whole(url)


async def test_the_log_says_who_asked_who_answered_and_who_cancelled(url: str) -> None:
    app = parley.asgi(shop(), store=url, caller=lambda scope: ADA)
    async with parley.connect(app) as client:
        reply = await client.send("tea")
        await client.send("3", task_id=reply.id)
        other = await client.send("coffee")
        await client.cancel(other.id)
    found = entries(url, task_id=reply.id)
    assert [(each.kind, each.actor) for each in found] == [
        ("task.created", "ada"),
        ("task.input_required", "server"),
        ("message.received", "ada"),
        ("task.answered", "ada"),
        ("task.completed", "server"),
    ]
    assert (found[0].issuer, found[0].client, found[0].agent) == (ADA.issuer, "app", "shop")
    assert found[3].details == {"turn": 2, "attempt": 1, "question": "1"}
    assert [each.at for each in found] == sorted([each.at for each in found])
    cancelled = entries(url, task_id=other.id, actor="ada")
    assert [each.kind for each in cancelled] == ["task.created", "task.cancel_requested"]
    assert entries(url, actor="bob") == []
    assert entries(url, since=found[-1].at + 60_000) == []


async def test_decisions_of_a_policy_are_facts(url: str) -> None:
    agent = shop(rights=Rights(policy=lambda access: access.action != "read"))
    app = parley.asgi(agent, store=url, caller=lambda scope: ADA)
    async with parley.connect(app) as client:
        await client.send("secret report")
    [decided] = entries(url, kind="policy")
    assert (decided.actor, decided.outcome) == ("ada", "denied")
    assert (decided.details["action"], decided.details["resource"]) == ("read", "report")


@pytest.mark.slow
async def test_a_server_that_cancels_by_itself_says_so() -> None:
    now = [1_000_000]
    store = MemoryTaskStore(clock=lambda: now[0])
    agent = shop(execution=Execution(input_timeout=timedelta(seconds=1)))
    host_app = parley.asgi(agent, store=store, caller=lambda scope: ADA)
    async with parley.connect(host_app) as client:
        reply = await client.send("tea")

        async def has_ended() -> bool:
            now[0] += 10_000
            record = await store.load(reply.id)
            return record is not None and record.task.status.state is TaskState.CANCELED

        await until(has_ended, interval=0.1)
        records = await store.private_records(reply.id, [RecordKind.CANCEL])
    fact = fact_of(records[0], ADA.owner)
    assert fact is not None
    assert (fact.actor, fact.issuer) == ("server", "parley")
    assert fact.details["reason"] == "input_timeout"


def record(kind: RecordKind, payload: bytes, seq: int = 2, sub: int = 1) -> LoggedEvent:
    return logged("t", seq, sub, 1, kind, 5, payload)


def test_logs_of_earlier_versions_are_read() -> None:
    fact = fact_of(record(RecordKind.CANCEL, b"{}"), ADA.owner)
    assert fact is not None
    assert fact.actor == "server"  # a caller with an id always has a record
    fact = fact_of(record(RecordKind.CANCEL, b"{}"), "")
    assert fact is not None
    assert fact.actor == "anonymous"
    fact = fact_of(record(RecordKind.CANCEL, b'{"caller":{"id":"ada"}}'), ADA.owner)
    assert fact is not None
    assert (fact.actor, fact.issuer) == ("ada", ADA.issuer)
    fact = fact_of(record(RecordKind.TURN, b'{"turn":1,"attempt":2}'), "")
    assert fact is not None
    assert (fact.kind, fact.details["attempt"]) == ("turn.retried", 2)


def test_settings_have_no_credentials_of_urls() -> None:
    given = {"a": {"b": "redis://ada:s3cret@host/0?password=s3cret", "c": ["x://s3cret@h", 1]}}
    assert flat(given) == {"a.b": "redis://host/0", "a.c": "1, x://h"}


def test_a_change_at_the_end_of_a_long_setting_shows() -> None:
    hosts = [f"host-{n}.example" for n in range(100)]
    before, after = flat({"allow": hosts}), flat({"allow": [*hosts[:-1], "other.example"]})
    assert before["allow"] != after["allow"]
    assert len(before["allow"]) <= 200


def test_a_retention_of_nothing_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="longer than zero"):
        parley.asgi(shop(), audit_retention=timedelta(0))


async def test_old_lines_go_after_the_retention() -> None:
    now = [1_000_000]
    store = MemoryTaskStore(clock=lambda: now[0])
    app = parley.asgi(shop(), store=store, audit_retention=timedelta(days=1))
    async with parley.connect(app):
        pass
    now[0] += 2 * 86_400_000
    async with parley.connect(app):

        async def is_pruned() -> bool:
            lines: Sequence[AuditLine] = await store.read_audit(EVERYTHING)
            return lines[0].seq > 1

        await until(is_pruned)
        assert verify(await store.read_audit(EVERYTHING)).is_intact
