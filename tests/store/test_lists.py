"""Which tasks are listed, and in what order."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from parley.model.tasks import Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from parley.store.events import Scope
from parley.store.fold import IllegalEvent, fold
from parley.store.protocols.task_log import TaskPage, TaskQuery
from parley.store.task_store import TaskStore
from tests.kit.records import SCOPE, addition, chunk, creation, pieces, status, task, turn_started

pytestmark = pytest.mark.anyio


def ids(page: TaskPage) -> list[str]:
    return [task.id for task in page.tasks]


async def listed(store: TaskStore, **query: Any) -> TaskPage:
    return await store.list(TaskQuery(**{"scope": SCOPE, **query}))


async def test_the_last_updated_comes_first_and_then_the_larger_id(store: TaskStore) -> None:
    for name, at in (("a", 5), ("c", 7), ("b", 7), ("d", 6)):
        await store.append(creation(name, at=at))
    page = await listed(store)
    assert (ids(page), page.total, page.more) == (["c", "b", "d", "a"], 4, False)
    await store.append(addition("a", 1, status("a", TaskState.WORKING, at=8)))
    await store.append(addition("c", 1, chunk("c", "x")))
    assert ids(await listed(store)) == ["a", "c", "b", "d"]


async def test_a_status_without_a_moment_is_refused(store: TaskStore) -> None:
    without = TaskStatus(state=TaskState.WORKING)
    with pytest.raises(IllegalEvent, match="timestamp is missing"):
        await store.append(creation("a", first=Task(id="a", context_id="c", status=without)))
    await store.append(creation("b"))
    update = TaskStatusUpdateEvent(task_id="b", context_id="context-b", status=without)
    with pytest.raises(IllegalEvent, match="timestamp is missing"):
        await store.append(addition("b", 1, update))
    assert ids(await listed(store)) == ["b"]


async def test_pages_follow_one_another_without_gap_or_repetition(store: TaskStore) -> None:
    names = [f"t{n:02}" for n in range(25)]
    for name in names:
        await store.append(creation(name, at=1000 + int(name[1:]) // 4))
    found: list[str] = []
    before = None
    while True:
        page = await listed(store, limit=4, before=before)
        assert page.total == 25
        found += ids(page)
        assert page.more == (len(found) < 25)
        if not page.more:
            break
        last = page.tasks[-1]
        assert last.status.timestamp is not None
        before = (last.status.timestamp.milliseconds, last.id)
    assert found == names[::-1]


async def test_a_walk_is_bounded_to_what_was_there_when_it_began(store: TaskStore) -> None:
    for n in range(4):
        await store.append(creation(f"t{n}", at=n))
    first = await listed(store, limit=2, not_after=3)
    assert (ids(first), first.total) == (["t3", "t2"], 4)
    await store.append(creation("new", at=9))
    await store.append(addition("t3", 1, status("t3", TaskState.WORKING, at=10)))
    rest = await listed(store, limit=2, not_after=3, before=(2, "t2"))
    assert (ids(rest), rest.more) == (["t1", "t0"], False)


async def test_lists_can_be_narrowed(store: TaskStore) -> None:
    await store.append(creation("a", at=1, context_id="one"))
    await store.append(creation("b", at=2, context_id="one"))
    await store.append(creation("c", at=3, context_id="two"))
    await store.append(addition("b", 1, status("b", TaskState.WORKING, at=4)))
    assert ids(await listed(store, context_id="one")) == ["b", "a"]
    assert ids(await listed(store, state=TaskState.SUBMITTED)) == ["c", "a"]
    assert ids(await listed(store, status_after=3)) == ["b", "c"]
    page = await listed(store, context_id="one", state=TaskState.SUBMITTED, status_after=1, limit=1)
    assert (ids(page), page.total, page.more) == (["a"], 1, False)
    page = await listed(store, context_id="one", limit=1)
    assert (ids(page), page.total, page.more) == (["b"], 2, True)
    page = await listed(store, context_id="one", limit=1, before=(4, "b"))
    assert (ids(page), page.total, page.more) == (["a"], 2, False)
    assert ids(await listed(store, context_id="none")) == []


@pytest.mark.parametrize("field", ["agent", "tenant", "owner"])
async def test_nothing_is_found_outside_its_scope(store: TaskStore, field: str) -> None:
    other = msgspec.structs.replace(SCOPE, **{field: "other"})
    await store.append(creation("mine", context_id="c"))
    await store.append(creation("theirs", scope=other, context_id="c"))
    for query in ({}, {"context_id": "c"}):
        page = await listed(store, **query)
        assert (ids(page), page.total) == (["mine"], 1)
        page = await listed(store, scope=other, **query)
        assert (ids(page), page.total) == (["theirs"], 1)
    assert (await listed(store, scope=Scope("nobody"))).total == 0


@pytest.mark.parametrize("with_snapshot", [False, True])
async def test_artifacts_are_listed_when_asked_for(store: TaskStore, with_snapshot: bool) -> None:
    first = [task("t"), chunk("t", "a"), status("t", TaskState.INPUT_REQUIRED, "which?")]
    then = [turn_started(2, "this"), chunk("t", "b"), status("t", TaskState.WORKING, "on it")]
    kept = pieces(*first) if with_snapshot else None
    await store.append(creation("t", *first[1:], artifacts=kept, first=first[0]))
    await store.append(addition("t", 3, *then, turn=2))
    whole = fold([*first, *then])
    [full] = (await listed(store, artifacts=True)).tasks
    [bare] = (await listed(store)).tasks
    assert full == whole
    assert bare == msgspec.structs.replace(whole, artifacts=())
    assert [m.text for m in bare.history] == ["hello", "which?", "this"]


async def test_a_list_and_a_single_task_agree_while_others_write(store: TaskStore) -> None:
    names = [f"t{n}" for n in range(5)]
    await asyncio.gather(*[store.append(creation(name, at=1)) for name in names])

    async def write(name: str) -> None:
        for seq in range(1, 40):
            state = TaskState.WORKING if seq % 2 else TaskState.INPUT_REQUIRED
            await store.append(addition(name, seq, status(name, state, str(seq), at=seq)))

    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(write(name)) for name in names]
        while not all(writer.done() for writer in writers):
            page = await listed(store)
            assert (len(page.tasks), page.total) == (5, 5)
            for listed_task in page.tasks:
                _is_consistent(listed_task)
                record = await store.load(listed_task.id)
                assert record is not None
                _is_consistent(record.task)
            await asyncio.sleep(0)


def _is_consistent(found: Task) -> None:
    """The history holds exactly the messages before the present one."""
    assert found.status.timestamp is not None
    said = [m.text for m in found.history[1:]]
    if found.status.message is not None:
        said.append(found.status.message.text)
    assert said == [str(n + 1) for n in range(len(said))]
