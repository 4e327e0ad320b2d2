"""Turns that sleep, and that wait for events: rows, not coroutines."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from parley import Agent, BlockingTurn, CallContext, Execution, Task, TaskState, Turn
from parley.model.operations import CancelTaskRequest
from parley.model.tasks import TaskStatusUpdateEvent
from parley.store.protocols.tables import NEVER
from tests.engine.fleet import collect, get, states
from tests.engine.turn.sleeper import DAY, MS, Open, Sleeper, results, said
from tests.engine.turn.sleeper import clock as clock
from tests.engine.turn.sleeper import new_store as new_store
from tests.engine.turn.sleeper import opened as opened
from tests.kit.waiting import Clock, let_time_pass, until

pytestmark = pytest.mark.anyio


async def test_a_turn_sleeps_for_two_days_in_an_instant(opened: Open, clock: Clock) -> None:
    agent, runs = Agent("Sleepy"), []

    @agent.skill(replies="task")
    async def remind(turn: Turn) -> str:
        runs.append((turn.attempt, turn.number))
        await turn.sleep(2 * DAY)
        return f"Time for {turn.text}!"

    began = clock.now
    async with opened(agent) as caller:
        task = await caller.begin("tea")
        assert await caller.asleep(task) == began + 2 * MS
        assert caller.executor.running == 0
        assert (await get(caller, task.id)).state is TaskState.WORKING
        caller.pass_time(2 * MS - 1)
        await let_time_pass(0.05)
        assert len(runs) == 1, "it is not time yet"
        caller.pass_time(1)
        assert results(await caller.ended(task)) == "Time for tea!"
    assert runs == [(1, 1), (1, 1)], "waking up continues the attempt"


async def test_an_event_wakes_a_turn_and_gives_it_its_value(opened: Open) -> None:
    agent = Agent("Shop")

    @agent.skill(replies="task")
    async def order(turn: Turn) -> str:
        paid = await turn.wait_event(f"payment:{turn.text}", message="Waiting for the payment.")
        again = await turn.wait_event(f"payment:{turn.text}")
        assert again == paid
        return f"{paid['amount']} {paid['currency']}"

    async with opened(agent) as caller:
        task = await caller.begin("42")
        assert await caller.asleep(task) == NEVER
        waiting = await get(caller, task.id)
        assert (waiting.state, said(waiting)) == (TaskState.WORKING, "Waiting for the payment.")
        assert await caller.complete("payment:41", b'{"amount":1}')
        assert await caller.complete("payment:42", b'{"currency":"EUR","amount":7}')
        assert results(await caller.ended(task)) == "7 EUR"
        early = await caller.begin("41-early")
        await caller.asleep(early)
        assert await caller.complete("payment:41-early", b'{"amount":1,"currency":"X"}')
        assert results(await caller.ended(early)) == "1 X"


async def test_an_event_that_is_complete_already_is_not_slept_for(opened: Open) -> None:
    agent, runs = Agent("Shop"), []

    @agent.skill(replies="task")
    async def order(turn: Turn) -> str:
        runs.append(turn.attempt)
        return str(await turn.wait_event("k"))

    async with opened(agent) as caller:
        await caller.complete("k", b"[1]")
        assert results(await caller.task("go")) == "[1]"
    assert runs == [1]


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


async def test_what_was_due_while_no_process_ran_wakes_at_once(opened: Open, clock: Clock) -> None:
    agent = Agent("Sleepy")

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.sleep(DAY)
        return "awake"

    async with opened(agent) as caller:
        task = await caller.begin()
        await caller.asleep(task)
    clock.now += 3 * MS
    async with opened(agent) as caller:
        assert results(await caller.ended(task)) == "awake"


async def test_a_further_attempt_sleeps_no_longer_and_not_again(opened: Open, clock: Clock) -> None:
    agent, begun = Agent("Sleepy"), clock.now

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.sleep(DAY, key="night")
        answer = await turn.ask("Awake?")
        await turn.sleep(DAY)
        return answer.text

    async with opened(agent) as caller:
        task = await caller.begin()
        await caller.asleep(task)
        caller.pass_time(MS // 2)
    async with opened(agent) as caller:
        assert await caller.asleep(task) == begun + MS
        caller.pass_time(MS // 2)
        await until(lambda: _in_state(caller, task, TaskState.INPUT_REQUIRED), 20)
        clock.now -= 5  # a clock that is set back a little
        await caller.task("yes", task_id=task.id, return_immediately=True)
        assert await caller.asleep(task) == clock.now + MS
        caller.pass_time(MS)
        assert results(await caller.ended(task)) == "yes"


async def _in_state(caller: Sleeper, task: Task, state: TaskState) -> bool:
    return (await get(caller, task.id)).state is state  # type: ignore[arg-type]


async def test_branches_that_wait_sleep_together_until_all_are_done(opened: Open) -> None:
    agent, runs, steps = Agent("Both"), [], []

    async def work() -> str:
        steps.append(1)
        await let_time_pass(0.05)
        return "worked"

    @agent.skill(replies="task")
    async def both(turn: Turn) -> str:
        runs.append(1)
        found = await asyncio.gather(
            turn.wait_event("a"), turn.sleep(DAY), turn.wait_event("b"), turn.step("work", work)
        )
        return str([found[0], found[2], found[3]])

    async with opened(agent) as caller:
        task = await caller.begin()
        assert await caller.asleep(task) == caller.clock.now + MS
        assert steps == [1], "the turn stayed awake for the step"
        await caller.complete("b", b"2")
        await until(lambda: len(runs) == 2, 20)
        await caller.asleep(task)
        await caller.complete("a", b"1")
        await until(lambda: len(runs) == 3, 20)
        await caller.asleep(task)
        caller.pass_time(MS)
        assert results(await caller.ended(task)) == "[1, 2, 'worked']"
    assert steps == [1]


async def test_the_first_of_several_events_is_enough(opened: Open) -> None:
    agent = Agent("Either")

    @agent.skill(replies="task")
    async def either(turn: Turn) -> str:
        waits = [asyncio.ensure_future(turn.wait_event(key)) for key in ("a", "b")]
        done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in left:
            wait.cancel()
        (first,) = done
        await turn.sleep(DAY)
        return str(first.result())

    async with opened(agent) as caller:
        task = await caller.begin()
        assert await caller.asleep(task) == NEVER
        await caller.complete("b", b'"second"')
        await until(lambda: _wakes(caller, task, caller.clock.now + MS), 20)
        caller.pass_time(MS)
        assert results(await caller.ended(task)) == "second"


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


async def test_cancelling_a_sleeping_task_works_at_once(opened: Open) -> None:
    agent, runs = Agent("Sleepy"), []

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        runs.append(1)
        await turn.sleep(DAY)
        return "awake"

    async with opened(agent) as caller:
        task = await caller.begin()
        await caller.asleep(task)
        request = CancelTaskRequest(id=task.id)
        canceled = await asyncio.wait_for(caller.service.cancel_task(request, CallContext()), 10)
        assert canceled.state is TaskState.CANCELED
        assert await caller.store.next_wake([caller.executor.agent]) is None
    assert runs == [1]


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


async def test_a_message_to_a_sleeping_task_waits_for_the_next_turn(opened: Open) -> None:
    agent, runs = Agent("Sleepy"), []

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        runs.append((turn.number, turn.latest.text))
        await turn.sleep(DAY)
        if turn.number == 1:
            await turn.ask("Awake?")
        return turn.latest.text

    async with opened(agent) as caller:
        task = await caller.begin()
        await caller.asleep(task)
        await caller.task("more", task_id=task.id, return_immediately=True)
        await let_time_pass(0.05)
        assert runs == [(1, "go")]
        caller.pass_time(MS)
        assert results(await caller.ended(task)) == "more"
    assert runs == [(1, "go"), (1, "go"), (2, "more")]


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


async def test_a_blocking_caller_gets_the_reply_of_a_turn_that_slept(opened: Open) -> None:
    agent = Agent("Sleepy")

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.sleep(DAY)
        return "awake"

    async with opened(agent) as caller:
        sending = asyncio.create_task(caller.task("go"))
        await until(lambda: _any_asleep(caller), 20)
        caller.pass_time(MS)
        assert results(await asyncio.wait_for(sending, 20)) == "awake"


async def test_a_blocking_caller_gets_the_sleeping_task_when_its_wait_is_over(opened: Open) -> None:
    agent = Agent("Sleepy", execution=Execution(blocking_timeout=0.2))

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.sleep(DAY)
        return "awake"

    async with opened(agent) as caller:
        assert (await caller.task("go")).state is TaskState.WORKING


@pytest.mark.parametrize("option", ["turn_timeout", "task_timeout"])
async def test_a_task_does_not_sleep_beyond_its_deadline(
    opened: Open, clock: Clock, option: str
) -> None:
    limits: dict[str, Any] = {option: timedelta(hours=1)}
    agent, runs = Agent("Sleepy", execution=Execution(**limits)), []

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        runs.append(1)
        await turn.wait_event("k", timeout=2 * DAY)
        return "awake"

    async with opened(agent) as caller:
        task = await caller.begin()
        at = await caller.asleep(task)
        assert clock.now < at <= clock.now + 3_600_000
        caller.pass_time(3_600_000)
        failed = await caller.ended(task)
        assert failed.state is TaskState.FAILED
        assert said(failed).endswith("was not finished in the time that it may take (1:00:00).")
    assert runs == [1]


async def test_plain_functions_sleep_and_wait_too(opened: Open) -> None:
    agent, runs = Agent("Threads"), []

    @agent.skill(replies="task")
    def nap(turn: BlockingTurn) -> str:
        runs.append(1)
        turn.sleep(DAY)
        return str(turn.wait_event("k"))

    async with opened(agent) as caller:
        task = await caller.begin()
        await caller.asleep(task)
        caller.pass_time(MS)
        await until(lambda: len(runs) == 2, 20)
        assert await caller.asleep(task) == NEVER
        await caller.complete("k", b"[true]")
        assert results(await caller.ended(task)) == "[True]"


async def test_an_artifact_that_is_written_around_a_sleep_is_whole(opened: Open) -> None:
    agent = Agent("Writer")

    @agent.skill(replies="task")
    async def write(turn: Turn) -> None:
        async with turn.stream(name="log") as out:
            await out.write("one ")
            await turn.sleep(DAY)
            await out.write("two")

    async with opened(agent) as caller:
        task = await caller.begin()
        await caller.asleep(task)
        assert results(await get(caller, task.id)) == "one "
        caller.pass_time(MS)
        done = await caller.ended(task)
        assert "".join([part.text or "" for part in done.artifacts[0].parts]) == "one two"


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
