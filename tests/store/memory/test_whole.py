"""Tasks that are kept whole are what would be read, and no more than there is room for."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.model.tasks import TaskState
from parley.store.memory import MemoryTaskStore
from tests.kit.records import SCOPE, addition, chunk, creation, status

STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["status", "chunk", "claim", "read", "end"])),
    max_size=30,
)


@given(STEPS)
def test_whatever_happened_in_between_a_task_is_read_as_it_is(steps: list[tuple[int, str]]) -> None:
    asyncio.run(_read_after_each(steps))


async def _read_after_each(steps: list[tuple[int, str]]) -> None:
    store = MemoryTaskStore()
    await store.open(lambda _: None)
    ended = set()
    for number, step in [*((n, "begin") for n in range(3)), *steps]:
        task_id = f"t{number}"
        log = store._logs.get(task_id)
        if log is None:
            await store.append(creation(task_id))
        elif task_id in ended:
            pass
        elif step == "claim":
            await store.claim(task_id)
        elif step != "read":
            event = {
                "status": status(task_id, TaskState.WORKING, "on it"),
                "chunk": chunk(task_id, "more"),
                "end": status(task_id, TaskState.COMPLETED, "done"),
            }[step]
            if step == "end":
                ended.add(task_id)
            await store.append(addition(task_id, log.head.seq, event, epoch=log.head.epoch))
        for each in store._logs.values():
            record = await store.load(each.head.task_id)
            again = await store.load(each.head.task_id, scope=SCOPE)
            assert record is not None
            assert again is not None
            assert record.stored == each.stored(None, artifacts=True)
            assert again.stored is record.stored
            assert record.stored.json() == each.stored(None, artifacts=True).json()
            assert (record.seq, record.epoch) == (each.head.seq, each.head.epoch)
    await store.close()


@pytest.mark.anyio
async def test_few_and_small_tasks_are_kept() -> None:
    store = MemoryTaskStore()
    await store.open(lambda _: None)
    for n in range(200):
        await store.append(creation(f"t{n}"))
        assert await store.load(f"t{n}") is not None
    assert len(store._shared.whole) == 64
    large = status("t199", TaskState.WORKING, "x" * 40_000)
    await store.append(addition("t199", store._logs["t199"].head.seq, large))
    one, other = [await store.load("t199") for _ in range(2)]
    assert one is not None
    assert other is not None
    assert one.stored == other.stored
    assert one.stored is not other.stored
    assert len(store._shared.whole) == 63
    await store.close()


@pytest.mark.anyio
async def test_a_task_that_is_pruned_is_kept_no_longer() -> None:
    store = MemoryTaskStore()
    await store.open(lambda _: None)
    await store.append(creation("t"))
    seq = store._logs["t"].head.seq
    await store.append(addition("t", seq, status("t", TaskState.COMPLETED, "done")))
    assert await store.load("t") is not None
    assert len(store._shared.whole) == 1
    assert await store.prune(SCOPE.agent, store.now() + 1000, 10) == 1
    assert await store.load("t") is None
    assert len(store._shared.whole) == 0
    await store.close()
