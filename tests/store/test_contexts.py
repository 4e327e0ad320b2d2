"""Data besides tasks: receipts, histories, values; and its removal."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from parley.model.tasks import TaskState
from parley.store.events import Scope
from parley.store.protocols.errors import DuplicateReceipt, UnknownTask
from parley.store.protocols.tables import HISTORY_KEPT, Receipt
from parley.store.protocols.task_log import TaskQuery
from parley.store.task_store import TaskStore
from tests.kit.records import (
    SCOPE,
    addition,
    chunk,
    creation,
    message,
    private_records,
    received,
    status,
)
from tests.kit.waiting import Clock

pytestmark = pytest.mark.anyio

OTHERS = [
    msgspec.structs.replace(SCOPE, **{field: "other"}) for field in ("agent", "tenant", "owner")
]


async def said(store: TaskStore, scope: Scope = SCOPE, limit: int = 50) -> list[str]:
    return [m.text for m in await store.history(scope, "c", limit)]


async def test_of_two_identical_sends_at_once_one_is_received(store: TaskStore) -> None:
    def send(n: int) -> asyncio.Future[int]:
        receipts = [Receipt("m", b"digest", task_id=f"t{n}", turn=1)]
        return asyncio.ensure_future(store.append(creation(f"t{n}", receipts=receipts)))

    sends = [send(n) for n in range(5)]
    bystander = store.append(creation("bystander"))
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert results.count(1) == 1
    assert sum(isinstance(result, DuplicateReceipt) for result in results) == 4
    assert await bystander == 1
    page = await store.list(TaskQuery(scope=SCOPE))
    assert page.total == 2
    receipt = await store.receipt(SCOPE, "m")
    assert receipt is not None
    assert await store.load(receipt.task_id) is not None


async def test_an_exchange_comes_with_its_append(store: TaskStore) -> None:
    await store.append(creation("t", context_id="c", exchange=[message("a"), message("b")]))
    assert await said(store) == ["a", "b"]


async def test_a_history_does_not_grow_without_bound(store: TaskStore) -> None:
    for n in range(0, HISTORY_KEPT + 300, 100):
        texts = [str(n + i) for i in range(100)]
        await store.keep(SCOPE, "c", exchange=[message(text) for text in texts])
    history = await said(store, limit=HISTORY_KEPT * 2)
    assert history == [str(n) for n in range(300, HISTORY_KEPT + 300)]


async def test_values_are_kept_for_a_context(store: TaskStore) -> None:
    assert await store.get_value(SCOPE, "c", "k") is None
    await store.set_value(SCOPE, "c", "k", b"1")
    await store.set_value(SCOPE, "c", "k", b"\x00\xff")
    await store.set_value(SCOPE, "c", "l", b"")
    assert await store.get_value(SCOPE, "c", "k") == b"\x00\xff"
    assert await store.get_value(SCOPE, "c", "l") == b""
    assert await store.get_value(SCOPE, "d", "k") is None
    for other in OTHERS:
        assert await store.get_value(other, "c", "k") is None
    await store.set_value(SCOPE, "c", "k", None)
    await store.set_value(SCOPE, "c", "never", None)
    assert await store.get_value(SCOPE, "c", "k") is None


async def test_of_many_at_once_that_expect_the_same_one_is_kept(store: TaskStore) -> None:
    where = (SCOPE, "c", "k")
    for before in (None, b"0", b"1"):
        await store.set_value(*where, before)
        values = [f"new {n}".encode() for n in range(30)]
        done = await asyncio.gather(
            *(store.compare_and_set(*where, before, value) for value in values)
        )
        assert sum(done) == 1
        assert await store.get_value(*where) == values[done.index(True)]
        expected = await store.get_value(*where)
        done = await asyncio.gather(
            *(store.compare_and_set(*where, expected, None) for _ in range(30))
        )
        assert sum(done) == 1
        assert await store.get_value(*where) is None


async def test_sets_and_comparisons_at_once_come_in_some_order(store: TaskStore) -> None:
    """A successful comparison used the stored value, despite concurrent writes."""
    where = (SCOPE, "c", "k")
    for _ in range(20):
        await store.set_value(*where, b"0")
        _, done, _ = await asyncio.gather(
            store.set_value(*where, b"1"),
            store.compare_and_set(*where, b"0", b"2"),
            store.set_value(*where, b"3"),
        )
        left = await store.get_value(*where)
        assert left in ((b"1", b"2", b"3") if done else (b"1", b"3"))
        done = await asyncio.gather(
            store.set_value(*where, b"1"), store.compare_and_set(*where, b"1", b"2")
        )
        assert await store.get_value(*where) in ((b"2", b"1") if done[1] else (b"1",))


async def ended(store: TaskStore, task_id: str, clock: Clock, at: int, **options: object) -> None:
    clock.now = at
    await store.append(creation(task_id, received("a"), **options))
    end = addition(task_id, 1, chunk(task_id, "x"), status(task_id, TaskState.COMPLETED))
    await store.append(end)


async def test_ended_tasks_go_with_all_that_is_theirs(store: TaskStore, clock: Clock) -> None:
    await ended(store, "old", clock, 10)
    await ended(store, "new", clock, 20)
    other = msgspec.structs.replace(SCOPE, agent="other")
    await ended(store, "other", clock, 10, scope=other)
    clock.now = 5
    await store.append(creation("alive"))
    assert await store.prune("agent", 10, 100) == 0
    assert await store.prune("agent", 11, 100) == 1
    assert await store.load("old") is None
    assert await store.events("old", 0, 10) == []
    assert await private_records(store, "old") == []
    with pytest.raises(UnknownTask):
        await store.append(addition("old", 3, chunk("old", "x")))
    left = await store.list(TaskQuery(scope=SCOPE))
    assert sorted(task.id for task in left.tasks) == ["alive", "new"]
    assert await store.load("other") is not None
    assert await store.append(creation("old")) == 1


async def test_old_receipts_and_contexts_go_with_the_tasks(store: TaskStore, clock: Clock) -> None:
    clock.now = 10
    await store.keep(SCOPE, "c", receipt=Receipt("old", b""), exchange=[message("a")])
    await store.set_value(SCOPE, "c", "k", b"1")
    await store.set_value(SCOPE, "touched", "k", b"1")
    await store.append(creation("t", context_id="used"))
    await store.set_value(SCOPE, "used", "k", b"1")
    clock.now = 20
    await store.keep(SCOPE, "d", receipt=Receipt("new", b""))
    await store.set_value(SCOPE, "touched", "l", b"1")
    assert await store.prune("other", 15, 100) == 0
    assert await said(store) == ["a"]
    assert await store.prune("agent", 15, 100) == 0
    assert await store.receipt(SCOPE, "old") is None
    assert await store.receipt(SCOPE, "new") is not None
    assert await said(store) == []
    assert await store.get_value(SCOPE, "c", "k") is None
    assert await store.get_value(SCOPE, "touched", "k") == b"1"
    assert await store.get_value(SCOPE, "used", "k") == b"1"
    await store.append(addition("t", 1, status("t", TaskState.COMPLETED)))
    assert await store.prune("agent", 30, 100) == 1
    assert await store.get_value(SCOPE, "used", "k") is None
    assert await store.get_value(SCOPE, "touched", "k") is None
    await store.set_value(SCOPE, "c", "k", b"2")
    assert await said(store) == []
