"""Turns that sleep or wait for events: durable rows instead of coroutines."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from parley import Agent, CallContext, Execution, Task, TaskState, Turn
from parley.model.operations import CancelTaskRequest
from parley.model.tasks import TaskStatusUpdateEvent
from tests.engine.fleet import collect, states
from tests.engine.turn.sleeper import DAY, MS, Open, Sleeper, results, said
from tests.engine.turn.sleeper import clock as clock
from tests.engine.turn.sleeper import new_store as new_store
from tests.engine.turn.sleeper import opened as opened
from tests.kit.waiting import Clock, until

pytestmark = pytest.mark.anyio


async def test_an_event_that_does_not_come_in_time_raises_in_every_replay(
    opened: Open, clock: Clock
) -> None:
    agent, seen = Agent("Shop"), []

    @agent.skill(replies="task")
    async def order(turn: Turn) -> str:
        heard = []
        for n in range(2):
            try:
                heard.append(await turn.wait_event("k", timeout=DAY))
            except TimeoutError as error:
                heard.append(f"no {n}: {error}")
        seen.append(heard)
        answer = await turn.ask("Well?")
        return f"{heard} {answer.text}"

    async with opened(agent) as caller:
        task = await caller.begin()
        assert await caller.asleep(task) == clock.now + MS
        caller.pass_time(MS)
        await until(lambda: _wakes(caller, task, clock.now + MS), 20)
        await caller.asleep(task)
        await caller.complete("k", b'"late"')
        await until(lambda: bool(seen), 20)
        await until(lambda: not caller.executor.running, 20)
        task = await caller.task("fine", task_id=task.id)
        assert results(task).endswith("'late'] fine")
    missed = "no 0: the event 'k' was not completed within the time given"
    assert seen[0] == seen[-1] == [missed, "late"]


async def _wakes(caller: Sleeper, task: Task, at: int) -> bool:
    record = await caller.store.load(task.id)
    return record is not None and record.wakes_at == at


async def test_sleeps_are_no_failed_attempts_and_crashes_between_them_count(opened: Open) -> None:
    agent, runs, crashes = Agent("Sleepy", execution=Execution(max_attempts=3)), [], []

    @agent.skill(replies="task")
    async def naps(turn: Turn) -> str:
        runs.append(turn.attempt)
        for n in range(30):
            await turn.sleep(60, key=f"nap {n}")
            if n == 20 and len(crashes) < 5:
                crashes.append(turn.attempt)
                turn._attempt.runner._main.cancel()  # type: ignore[attr-defined]
                turn._attempt.runner._function._cancellations = -1  # type: ignore[attr-defined]
                await asyncio.Event().wait()
        return "awake"

    async with opened(agent) as caller:
        task = await caller.begin()
        for _ in range(21):
            await caller.asleep(task)
            caller.pass_time(60_000)
            await until(lambda: _is_awake(caller, task), 20)
        await until(lambda: len(crashes) == 1 and not caller.executor.running, 20)
    for n in range(2):
        async with opened(agent) as caller:
            if n == 0:
                await until(lambda: len(crashes) == 2 and not caller.executor.running, 20)
            else:
                await until(lambda: len(crashes) == 3 and not caller.executor.running, 20)
    async with opened(agent) as caller:
        failed = await caller.ended(task)
        assert failed.state is TaskState.FAILED
        assert said(failed) == "The agent did not survive 3 attempts at this task."
    assert crashes == [1, 2, 3]


async def _is_awake(caller: Sleeper, task: Task) -> bool:
    record = await caller.store.load(task.id)
    return record is not None and record.wakes_at != caller.store.now()


async def test_an_agent_that_fails_on_crashes_may_sleep(opened: Open) -> None:
    agent = Agent("Careful", execution=Execution(on_crash="fail"))

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.sleep(DAY)
        await turn.sleep(DAY)
        return "awake"

    async with opened(agent) as caller:
        task = await caller.begin()
        await caller.asleep(task)
    async with opened(agent) as caller:  # another process
        caller.pass_time(MS)
        await until(lambda: _wakes(caller, task, caller.clock.now + MS), 20)
        caller.pass_time(MS)
        assert results(await caller.ended(task)) == "awake"


async def test_a_question_beside_a_wait_is_asked_and_the_wait_goes_on_after_it(
    opened: Open,
) -> None:
    agent = Agent("Both")

    @agent.skill(replies="task")
    async def both(turn: Turn) -> str:
        event, answer = await asyncio.gather(turn.wait_event("k"), turn.ask("Well?"))
        return f"{event} {answer.text}"

    async with opened(agent) as caller:
        task = await caller.task("go")
        assert task.state is TaskState.INPUT_REQUIRED
        await caller.task("fine", task_id=task.id, return_immediately=True)
        await caller.asleep(task)
        await caller.complete("k", b"1")
        assert results(await caller.ended(task)) == "1 fine"


async def test_cancelling_a_task_while_it_falls_asleep_works_too(opened: Open) -> None:
    agent = Agent("Sleepy")

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.working("tired")
        await turn.sleep(DAY)
        return "awake"

    async with opened(agent) as caller:
        for _ in range(20):
            task = await caller.begin()
            request = CancelTaskRequest(id=task.id)
            canceled = await asyncio.wait_for(
                caller.service.cancel_task(request, CallContext()), 10
            )
            assert canceled.state is TaskState.CANCELED


async def test_a_stream_stays_open_while_the_turn_sleeps(opened: Open) -> None:
    agent = Agent("Sleepy")

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.sleep(DAY, message="Good night.")
        return "awake"

    async with opened(agent) as caller:
        stream = asyncio.create_task(collect(caller.stream("go")))
        await until(lambda: _any_asleep(caller), 20)
        assert not stream.done()
        caller.pass_time(MS)
        items = await asyncio.wait_for(stream, 20)
    words = [
        item.event.status.message.text if item.event.status.message else ""
        for item in items
        if isinstance(item.event, TaskStatusUpdateEvent)
    ]
    assert words == ["", "Good night.", "", ""]
    assert states(items)[-1] is TaskState.COMPLETED


async def _any_asleep(caller: Sleeper) -> bool:
    at = await caller.store.next_wake([caller.executor.agent])
    return at is not None and not caller.executor.running


async def test_a_blocking_caller_gets_the_sleeping_task_when_its_wait_is_over(opened: Open) -> None:
    agent = Agent("Sleepy", execution=Execution(blocking_timeout=0.2))

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.sleep(DAY)
        return "awake"

    async with opened(agent) as caller:
        assert (await caller.task("go")).state is TaskState.WORKING


async def test_a_short_sleep_keeps_its_function(opened: Open) -> None:
    agent, runs = Agent("Quick"), []

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        runs.append(1)
        await turn.sleep(0.01)
        await turn.sleep(0)
        await turn.sleep(timedelta(0), key="none")
        return "awake"

    async with opened(agent) as caller:
        task = asyncio.create_task(caller.task("go"))
        await until(lambda: bool(runs), 20)
        caller.clock.now += 10
        assert results(await asyncio.wait_for(task, 20)) == "awake"
    assert runs == [1]
