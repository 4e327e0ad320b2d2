"""What turns that sleep may not do, what they cost, and how much they may wait for."""

from __future__ import annotations

import asyncio
import gc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from parley import Agent, BlockingTurn, CallContext, Execution, Task, TaskState, Turn
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.model.operations import SubscribeToTaskRequest
from parley.store.events import RecordKind
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.tables import MAX_WAITS
from parley.store.sqlite.store import SqliteTaskStore
from tests.engine.fleet import collect, events_of, states
from tests.engine.talk import Talk
from tests.engine.turn.sleeper import DAY, MS, Open, Sleeper, results
from tests.engine.turn.sleeper import clock as clock
from tests.engine.turn.sleeper import new_store as new_store
from tests.engine.turn.sleeper import opened as opened
from tests.kit.waiting import Clock, let_time_pass, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("method", "arguments", "error", "words"),
    [
        ("sleep", [-1], ValueError, "0 seconds or more"),
        ("sleep", [float("inf")], ValueError, "not for ever"),
        ("sleep", [float("nan")], ValueError, "0 seconds or more"),
        ("sleep", ["1 day"], TypeError, "a timedelta or a number of seconds"),
        ("sleep", [True], TypeError, "not a bool"),
        ("wait_event", [""], ValueError, "key of an event"),
        ("wait_event", [7], ValueError, "key of an event"),
        ("wait_event", ["k", -1], ValueError, "timeout is 0 seconds or more"),
    ],
)
async def test_misuse_is_refused_with_what_would_be_right(
    method: str, arguments: list[Any], error: type[Exception], words: str
) -> None:
    agent, raised = Agent("Wrong"), []

    @agent.skill(replies="task")
    async def wrong(turn: Turn) -> str:
        timeout = {"timeout": arguments[1]} if arguments[1:] else {}
        with pytest.raises(error, match=words):
            await getattr(turn, method)(arguments[0], **timeout)
        raised.append(1)
        await turn.sleep(0, key="twice")
        with pytest.raises(ValueError, match="'twice' is used twice"):
            await turn.sleep(0, key="twice")
        raised.append(2)
        return "fine"

    host = Host(placed(agent), MemoryTaskStore())
    await host.start()
    await Talk(host.services[""], host).task("go")
    await host.stop()
    assert raised == [1, 2]


async def test_a_timeout_of_nothing_only_looks(opened: Open) -> None:
    agent = Agent("Quick")

    @agent.skill(replies="task")
    async def look(turn: Turn) -> str:
        try:
            return str(await turn.wait_event("k", timeout=0))
        except TimeoutError:
            return "not yet"

    async with opened(agent) as caller:
        assert results(await caller.task("go")) == "not yet"
        await caller.complete("k", b"1")
        assert results(await caller.task("go")) == "1"


def _objects() -> int:
    gc.collect()
    return sum(1 for each in gc.get_objects() if "parley" in str(type(each).__module__))


async def test_sleeping_tasks_hold_no_coroutine_and_no_memory(clock: Clock, tmp_path: Path) -> None:
    agent = Agent("Sleepy", execution=Execution(max_queued=10_000))

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.sleep(DAY)
        return "awake"

    before = _objects()  # earlier tests of this process have left some
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
        # What the last of them leave behind goes a moment later.
        limit = objects[0] * 1.05 + 50 if objects else before + 1000
        await until(lambda limit=limit: _objects() <= limit, 60)
        tasks.append(len(asyncio.all_tasks()))
        objects.append(_objects())
    assert tasks[0] == tasks[1]
    assert len(await host.store.due_tasks("sleepy", clock.now + MS, 5000)) == 2000
    assert caller.executor._runners == {}
    await host.stop()


async def test_an_embedded_store_is_asked_nothing_while_no_task_sleeps(tmp_path: Path) -> None:
    asked = []

    class Asked(SqliteTaskStore):
        async def next_wake(self, agents: Any) -> int | None:
            asked.append(agents)
            return await super().next_wake(agents)

    agent = Agent("Quick")

    @agent.skill(replies="task")
    async def quick(turn: Turn) -> str:
        return "done"

    host = Host(placed(agent), Asked(tmp_path / "t.db", synchronous="OFF"), ServerOptions(drain=0))
    await host.start()
    await until(lambda: bool(asked))
    for _ in range(20):
        await Talk(host.services[""], host).task("go")
    await let_time_pass(0.2)
    assert len(asked) == 1, "once, when it started"
    await host.stop()


async def test_what_was_logged_of_waits_is_bounded(opened: Open) -> None:
    """Four private records for each sleep, however many there were before."""
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


async def test_a_subscriber_who_comes_while_a_task_sleeps_sees_it_end(opened: Open) -> None:
    agent = Agent("Sleepy")

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.sleep(DAY)
        return "awake"

    async with opened(agent) as caller:
        task = await caller.begin()
        await caller.asleep(task)
        request = SubscribeToTaskRequest(id=task.id)
        stream = caller.service.subscribe_to_task(request, CallContext())
        following = asyncio.create_task(collect(stream))
        await let_time_pass(0.02)
        caller.pass_time(MS)
        items = await asyncio.wait_for(following, 20)
        assert states(items)[-1] is TaskState.COMPLETED
        log = await events_of(caller, task.id)  # type: ignore[arg-type]
        assert states(log)[-1] is TaskState.COMPLETED


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
    """A step is one thing that is done: it cannot be left in its middle, and go on days later."""
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
