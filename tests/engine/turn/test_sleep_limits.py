"""Turns that sleep: forbidden operations, costs, and limits on waits."""

from __future__ import annotations

import asyncio
import gc
from itertools import pairwise
from pathlib import Path

import pytest

from parley import Agent, BlockingTurn, Execution, Task, Turn
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.store.events import RecordKind
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.tables import MAX_WAITS
from parley.store.sqlite.store import SqliteTaskStore
from tests.engine.talk import Talk
from tests.engine.turn.sleeper import DAY, MS, Open, Sleeper, results
from tests.engine.turn.sleeper import clock as clock
from tests.engine.turn.sleeper import new_store as new_store
from tests.engine.turn.sleeper import opened as opened
from tests.kit.waiting import Clock, until

pytestmark = pytest.mark.anyio


def _objects() -> int:
    gc.collect()
    return sum(1 for each in gc.get_objects() if "parley" in str(type(each).__module__))


async def test_what_was_logged_of_waits_is_bounded(opened: Open) -> None:
    """Each sleep adds four private records, independent of earlier sleeps."""
    agent = Agent("Sleepy")

    @agent.skill(replies="task")
    async def naps(turn: Turn) -> str:
        for _ in range(6):
            await turn.sleep(DAY)
        return "awake"

    async with opened(agent) as caller:
        task = await caller.begin()
        counts = []
        for _ in range(6):
            await caller.asleep(task)
            kinds = [kind for kind in RecordKind if not kind.is_public]
            counts.append(len(await caller.store.private_records(task.id, kinds)))
            at = await caller.asleep(task)
            caller.pass_time(MS)
            await until(lambda at=at: _later(caller, task, at), 20)
        await caller.ended(task)
    assert {after - before for before, after in pairwise(counts)} == {4}


async def _later(caller: Sleeper, task: Task, at: int) -> bool:
    record = await caller.store.load(task.id)
    return record is not None and (
        record.task.state.is_terminal or (record.wakes_at is not None and record.wakes_at > at)
    )


@pytest.mark.parametrize("more", [0, 1])
async def test_a_turn_waits_for_a_hundred_events_and_sleeps_beside_them(
    opened: Open, more: int
) -> None:
    agent = Agent("A")

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        """Waits for many events, and for a day."""
        events = [turn.wait_event(f"{number}") for number in range(MAX_WAITS + more)]
        try:
            await asyncio.gather(*events, turn.sleep(DAY))
        except ValueError as error:
            return str(error)
        return "done"

    async with opened(agent) as caller:
        task = await caller.begin()
        if more:
            assert (
                results(await caller.ended(task)) == "a turn waits for 100 events at once, at most"
            )
        else:
            assert await caller.asleep(task) == caller.clock.now + MS


@pytest.mark.parametrize("form", ["async", "plain"])
async def test_a_step_that_waits_is_refused_with_what_would_be_right(form: str) -> None:
    """A step runs without a break: it cannot stop in the middle and resume days later."""
    agent, raised = Agent("Wrong"), []

    if form == "async":

        @agent.skill(replies="task")
        async def wait(turn: Turn) -> str:
            for function, arguments in ((turn.sleep, [DAY]), (turn.wait_event, ["k"])):
                with pytest.raises(RuntimeError, match="outside of the step") as caught:
                    await turn.step(f"{function.__name__}", function, *arguments)
                raised.append(str(caught.value))
            return "fine"

    else:

        @agent.skill(replies="task")
        def wait(turn: BlockingTurn) -> str:
            for function, arguments in ((turn.sleep, [DAY]), (turn.wait_event, ["k"])):
                with pytest.raises(RuntimeError, match="outside of the step") as caught:
                    turn.step(f"{function.__name__}", function, *arguments)
                raised.append(str(caught.value))
            return "fine"

    host = Host(placed(agent), MemoryTaskStore())
    await host.start()
    task = await asyncio.wait_for(Talk(host.services[""], host).task("go"), 10)
    await host.stop()
    assert results(task) == "fine"
    assert ["'sleep'" in raised[0], "'wait_event'" in raised[1]] == [True, True]


async def test_sleeping_tasks_hold_no_coroutine_and_no_memory(clock: Clock, tmp_path: Path) -> None:
    agent = Agent("Sleepy", execution=Execution(max_queued=10_000))

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.sleep(DAY)
        return "awake"

    before = _objects()  # left by earlier tests of this process
    host = Host(
        placed(agent),
        SqliteTaskStore(tmp_path / "t.db", synchronous="OFF", clock=clock),
        ServerOptions(drain=0),
    )
    await host.start()
    caller = Sleeper(host.services[""], host)
    caller.clock = clock
    tasks, objects = [], []
    for _ in range(2):
        for _ in range(10):
            await asyncio.gather(*[caller.begin() for _ in range(100)])
        await until(lambda: not caller.executor.running and not caller.executor.queue.length, 60)
        # The last turns free their objects a moment later.
        limit = objects[0] * 1.05 + 50 if objects else before + 1000
        await until(lambda limit=limit: _objects() <= limit, 60)
        tasks.append(len(asyncio.all_tasks()))
        objects.append(_objects())
    assert tasks[0] == tasks[1]
    assert len(await host.store.due_tasks("sleepy", clock.now + MS, 5000)) == 2000
    assert caller.executor._runners == {}
    await host.stop()
