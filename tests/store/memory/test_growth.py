"""What a memory store looks at grows with what it returns, not with what it keeps.

Costs are counted in steps of the interpreter, so that a look at a head counts whoever does it.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Coroutine
from types import FrameType
from typing import Any

import pytest

from parley.model.tasks import TaskState
from parley.store.memory import MemoryTaskStore, index
from parley.store.protocols.tables import NEVER, Receipt
from parley.store.protocols.task_log import TaskQuery
from tests.kit.records import AT, SCOPE, addition, creation, message, status
from tests.store.conftest import Clock

pytestmark = pytest.mark.anyio

FEW, MANY = 200, 10_000


def steps(work: Coroutine[Any, Any, Any]) -> int:
    """How many instructions of the interpreter a coroutine takes that waits for nothing."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work.send(None)
    except StopIteration:
        return count
    finally:
        sys.settrace(before)
    raise AssertionError("a memory store does not wait")


async def filled(tasks: int) -> tuple[MemoryTaskStore, Clock]:
    """A store with tasks of all kinds in one scope, half of them in one context."""
    clock = Clock()
    store = MemoryTaskStore(clock=clock)
    await store.open(lambda records: None)
    for n in range(tasks):
        name, kind = f"t{n:05}", n % 5
        context_id = f"c{n}" if n % 2 else "c"
        release, receipts = kind == 3, (Receipt(name, b""),)
        options = {"context_id": context_id, "receipts": receipts, "release": release}
        said = (message("hello"),)
        store.append(creation(name, at=AT + n, queue_key=n + 1, exchange=said, **options))
        if kind == 0:
            store.append(addition(name, 1, status(name, TaskState.COMPLETED, at=AT + n)))
        elif kind == 1:
            waits = status(name, TaskState.INPUT_REQUIRED, at=AT + n)
            store.append(addition(name, 1, waits, turn_open=False))
        elif kind == 2:
            keys = (f"e{n}",)
            store.append(addition(name, 1, release=True, wakes_at=NEVER - n, waits_for=keys))
    clock.now += 1000
    return store, clock


async def costs(tasks: int) -> dict[str, int]:
    store, clock = await filled(tasks)
    assert len(store._index._moved) <= index.MAX_MOVED, "little is left to be filed"
    await store.unclaimed()
    middle, state = (AT + tasks // 2, "t"), TaskState.COMPLETED
    pages = {
        "first page": TaskQuery(scope=SCOPE, limit=10),
        "page in the middle": TaskQuery(scope=SCOPE, limit=10, before=middle),
        "page of a state": TaskQuery(scope=SCOPE, limit=10, state=state, before=middle),
        "page of a context": TaskQuery(scope=SCOPE, limit=10, context_id="c", before=middle),
        "page of a span": TaskQuery(
            scope=SCOPE, limit=10, status_after=AT + 5, not_after=AT + tasks - 5
        ),
    }
    found = {name: steps(store.list(query)) for name, query in pages.items()}
    for query in pages.values():
        page = await store.list(query)
        assert (len(page.tasks), page.more) == (10, True)
    assert (await store.list(pages["page of a span"])).total == tasks - 9
    found |= {
        "unclaimed": steps(store.unclaimed()),
        "first_queued": steps(store.first_queued("agent")),
        "next_wake": steps(store.next_wake(["agent"])),
        "due_tasks": steps(store.due_tasks("agent", NEVER, 10)),
        "awaiting_input": steps(store.awaiting_input("agent", clock.now, 10)),
        "active_pushes": steps(store.active_pushes(["agent"], 0, 10)),
        "claim_pushes": steps(store.claim_pushes("agent", 10)),
        "replicas": steps(store.replicas()),
        "complete_event": steps(store.complete_event("agent", "e2", b"1")),
        "prune nothing": steps(store.prune("agent", AT - 1, 10)),
        "claim_batch": steps(store.claim_batch("agent", 10)),
    }
    assert len(await store.held_tasks()) == tasks // 5 + 10
    steps(store.prune("agent", clock.now, 10))  # the receipts and contexts, which go at once
    found["prune"] = steps(store.prune("agent", clock.now, 10))
    await store.close()
    return found


async def test_no_query_looks_at_more_tasks_because_there_are_more() -> None:
    few, many = await costs(FEW), await costs(MANY)
    for name, count in many.items():
        assert count <= few[name] * 1.1 + 50, (name, few[name], count)


async def test_what_a_task_costs_in_orders_is_small() -> None:
    """Bytes for each task beside its log: two places, and a context of its own."""
    store = MemoryTaskStore()
    await store.open(lambda records: None)
    for n in range(1000):
        store.append(creation(f"t{n}", at=AT + n))
    store._index, kept = index.TaskIndex(store._logs), list(store._logs.values())
    tracemalloc.start()
    try:
        for log in kept:
            log.number = 0
            store._index.moved(log)
        await store.unclaimed()
        assert tracemalloc.get_traced_memory()[0] / len(kept) < 600
    finally:
        tracemalloc.stop()
    await store.close()
