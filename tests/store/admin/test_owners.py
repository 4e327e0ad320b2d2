"""Assigning an issuer to the data of plain ids (``parley store migrate --issuer``)."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from parley.host.store_urls import open_admin, open_store
from parley.model.service import Caller
from parley.model.tasks import TaskState
from parley.store.admin.admin import Owned, OwnerAssignment, StoreAdmin
from parley.store.admin.transfer import checked, export_to, lines_in
from parley.store.events import Scope
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.claims import SHORTEST_LEASE
from parley.store.protocols.errors import Fenced, StoreUnavailable
from parley.store.protocols.tables import HISTORY_KEPT, Receipt
from parley.store.protocols.task_log import TaskQuery
from parley.store.task_store import TaskStore
from tests.kit.records import addition, creation, message, status
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

ISSUER = "https://login.example"
TO = OwnerAssignment(issuer=ISSUER)
ADA = Caller(id="ada", issuer=ISSUER, authenticated=True).owner
BOB = Caller(id="bob", issuer=ISSUER, authenticated=True).owner
NOT_PLAIN = ["", Caller(id="bob").owner, Caller("bob", True, issuer="other").owner]
NOTHING = Owned(tasks=0, contexts=0, receipts=0)


class Kept(NamedTuple):
    """A store by its URL."""

    url: str

    def store(self) -> TaskStore:
        return open_store(self.url)

    @property
    def admin(self) -> StoreAdmin:
        return open_admin(self.url)

    async def fill(self, *scopes: Scope, mark: str = "") -> None:
        """Store two tasks, a context and a receipt for each scope."""
        store = self.store()
        await store.open(ignore)
        for n, scope in enumerate(scopes):
            for end in (TaskState.COMPLETED, TaskState.INPUT_REQUIRED):
                task_id = f"{mark}{n}-{end.name}"
                receipt = Receipt(f"m-{task_id}", b"d", task_id, 1)
                await store.append(creation(task_id, scope=scope, receipts=[receipt]))
                await store.append(addition(task_id, 1, status(task_id, end), turn_open=False))
            await store.keep(scope, "c", exchange=[message(f"{mark}{n}")])
            await store.set_value(scope, "c", "mark", f"{mark}{n}".encode())
        await store.close()

    async def look(self, scope: Scope) -> dict[str, Any]:
        """Return the data that an owner finds."""
        store = self.store()
        await store.open(ignore)
        try:
            page = await store.list(TaskQuery(scope=scope, limit=100))
            return {
                "tasks": sorted(task.id for task in page.tasks),
                "total": page.total,
                "completed": (
                    await store.list(TaskQuery(scope=scope, limit=9, state=TaskState.COMPLETED))
                ).total,
                "history": [m.text for m in await store.history(scope, "c", 1000)],
                "mark": await store.get_value(scope, "c", "mark"),
                "receipts": [
                    receipt.task_id
                    for task in page.tasks
                    if (receipt := await store.receipt(scope, f"m-{task.id}")) is not None
                ],
            }
        finally:
            await store.close()


def ignore(records: Sequence[Any]) -> None:
    """Notify no one."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    if request.param == "postgres":
        return Kept(request.getfixturevalue("postgres_url"))
    return Kept(f"sqlite:///{tmp_path / 'tasks.db'}")


@pytest.mark.slow
async def test_what_belongs_to_plain_ids_belongs_to_those_of_the_issuer(kept: Kept) -> None:
    plain = [Scope("a", "", "ada"), Scope("a", "t", "bob"), Scope("b", "", "bob")]
    others = [Scope("a", "", owner) for owner in NOT_PLAIN]
    await kept.fill(*plain, *others)
    before = [await kept.look(scope) for scope in (*plain, *others)]
    assert kept.admin.unassigned(TO) == Owned(tasks=6, contexts=3, receipts=6)
    assert kept.admin.assign(TO) == Owned(tasks=6, contexts=3, receipts=6)
    moved = [Scope(s.agent, s.tenant, {"ada": ADA, "bob": BOB}[s.owner]) for s in plain]
    assert [await kept.look(scope) for scope in (*moved, *others)] == before
    for scope in plain:
        found = await kept.look(scope)
        assert (found["tasks"], found["total"], found["history"]) == ([], 0, [])
    survey = kept.admin.survey()
    assert sum(n for *_, n in survey.tasks) == 12
    # A repetition changes nothing.
    assert kept.admin.unassigned(TO) == kept.admin.assign(TO) == NOTHING
    assert [await kept.look(scope) for scope in (*moved, *others)] == before


async def test_what_there_is_under_the_issuer_already_is_put_together(kept: Kept) -> None:
    """The migration merges the data of both owners, even when repeated."""
    plain, theirs = Scope("a", "", "bob"), Scope("a", "", BOB)
    await kept.fill(plain, mark="old")
    await kept.fill(theirs, mark="new")
    assert kept.admin.assign(TO) == Owned(tasks=2, contexts=1, receipts=2)
    found = await kept.look(theirs)
    assert (found["total"], found["completed"]) == (4, 2)
    assert found["history"] == ["old0", "new0"]
    assert found["mark"] == b"new0"
    assert sorted(found["receipts"]) == found["tasks"]
    await kept.fill(plain, mark="late")
    assert kept.admin.assign(TO).contexts == 1
    found = await kept.look(theirs)
    assert (found["total"], found["history"]) == (6, ["late0", "old0", "new0"])
    store = kept.store()
    await store.open(ignore)
    await store.keep(theirs, "c", exchange=[message("after")])
    assert [m.text for m in await store.history(theirs, "c", 2)] == ["new0", "after"]
    await store.close()


async def test_a_message_that_was_answered_twice_keeps_the_later_answer(kept: Kept) -> None:
    plain, theirs = Scope("a", "", "bob"), Scope("a", "", BOB)
    store = kept.store()
    await store.open(ignore)
    await store.keep(plain, "c", receipt=Receipt("m", b"d", reply=b'{"a":1}'))
    await store.keep(theirs, "c", receipt=Receipt("m", b"e", reply=b'{"a":2}'))
    await store.close()
    assert kept.admin.assign(TO).receipts == 1
    store = kept.store()
    await store.open(ignore)
    found = await store.receipt(theirs, "m")
    assert found is not None
    assert (found.digest, found.reply) == (b"e", b'{"a":2}')
    assert await store.receipt(plain, "m") is None
    await store.close()


async def test_no_more_of_a_conversation_is_kept_than_of_others(kept: Kept) -> None:
    """The export file can also be imported."""
    plain, theirs = Scope("a", "", "bob"), Scope("a", "", BOB)
    store = kept.store()
    await store.open(ignore)
    for scope, count in ((plain, HISTORY_KEPT), (theirs, HISTORY_KEPT - 3)):
        said = [message(f"{scope.owner[:3]} {n}") for n in range(count)]
        for n in range(0, count, 100):
            await store.keep(scope, "c", exchange=said[n : n + 100])
    await store.close()
    kept.admin.assign(TO)
    history = (await kept.look(theirs))["history"]
    assert len(history) == HISTORY_KEPT
    assert history[:4] == [*[f"bob {HISTORY_KEPT - n}" for n in (3, 2, 1)], "htt 0"]
    assert history[-1] == f"htt {HISTORY_KEPT - 4}"
    file = io.BytesIO()
    with kept.admin.reading() as source:
        counts = export_to(source, file.write, by="a test")
    file.seek(0)
    [context] = checked(lines_in(file))
    assert len(context.parts) == counts.messages == HISTORY_KEPT


@pytest.mark.service
async def test_a_replica_that_was_away_meanwhile_knows_nothing_of_before(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica is paused for longer than its lease, and then continues."""
    from parley.store.postgres import background

    beat: Callable[..., None] = background.Heartbeat._beat
    is_away = asyncio.Event()

    def unless_away(self: Any) -> None:
        if not is_away.is_set():
            beat(self)

    monkeypatch.setattr(background.Heartbeat, "_beat", unless_away)
    kept, plain, theirs = Kept(postgres_url), Scope("a", "", "bob"), Scope("a", "", BOB)
    store = open_store(postgres_url, lease=SHORTEST_LEASE)
    assert isinstance(store, PostgresTaskStore)
    await store.open(ignore)
    try:
        await store.append(creation("t", scope=plain, epoch=1))
        is_away.set()
        async with asyncio.timeout(30):
            while True:
                try:
                    assert (await asyncio.to_thread(kept.admin.assign, TO)).tasks == 1
                    break
                except StoreUnavailable:
                    await let_time_pass(0.05)
        with pytest.raises(Fenced):
            await store.append(addition("t", 1, status("t", TaskState.WORKING), epoch=1))
        is_away.clear()
        record = await store.load("t")
        assert record is not None
        assert (record.scope, record.lease_owner) == (theirs, "")
        assert (await store.list(TaskQuery(scope=theirs, limit=9))).total == 1
        [claimed] = await store.claim_batch("a", 9)
        event = status("t", TaskState.COMPLETED)
        await store.append(addition("t", 1, event, epoch=claimed.epoch, turn_open=False))
        page = await store.list(TaskQuery(scope=theirs, limit=9, state=TaskState.COMPLETED))
        assert page.total == 1
        assert (await store.list(TaskQuery(scope=plain, limit=9))).total == 0
    finally:
        await store.close()
