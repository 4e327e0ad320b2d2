"""Several replicas of an agent on one store: each can accept, run, cancel and finish any task."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from parley import Agent, CallContext, Execution, Message, Task, TaskState, Turn
from parley.engine.replies import ReplyWait
from parley.model.concurrency import outcome_of
from parley.model.errors import OverloadedError, TaskNotCancelableError, UnsupportedOperationError
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import CancelTaskRequest
from parley.model.tasks import TaskStatusUpdateEvent
from tests.engine.fleet import (
    Fleet,
    Gate,
    Replica,
    collect,
    events_of,
    get,
    states,
    until_state,
    where,
)
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio

ONCE = CallContext(extensions=frozenset({IDEMPOTENT_SEND}))


async def cancel(replica: Replica, task_id: str) -> Task:
    request = CancelTaskRequest(id=task_id)
    return await asyncio.wait_for(replica.service.cancel_task(request, replica.context), 20)


def quiz(questions: int = 3) -> Agent:
    agent = Agent("Quiz")

    @agent.skill
    async def ask(turn: Turn) -> str:
        return " ".join([(await turn.ask(f"Question {n}?")).text for n in range(questions)])

    return agent


# -- messages (E2) -------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0.0, 1.0])
@pytest.mark.E2
async def test_senders_on_three_replicas_each_get_the_reply_of_their_own_turn(
    fleet: Fleet, lost: float
) -> None:
    fleet.loses = lost
    agent = quiz()
    replicas = [await fleet.add(agent) for _ in range(3)]
    for _ in range(2 if lost else 10):
        task = await replicas[0].task("go")

        async def answer(n: int, task_id: str = task.id) -> tuple[int, str]:
            replica = replicas[n % 3]
            if n % 2:
                reply = await replica.task(f"a{n}", task_id=task_id)
                return n, reply.status.message.text if reply.status.message else reply.text
            end = (await collect(replica.stream(f"a{n}", task_id=task_id)))[-1].event
            assert isinstance(end, TaskStatusUpdateEvent)
            return n, end.status.message.text if end.status.message else "done"

        told = await asyncio.wait_for(
            asyncio.gather(*(answer(n) for n in range(6)), return_exceptions=True), 20
        )
        replies = [reply for reply in told if not isinstance(reply, BaseException)]
        refused = [reply for reply in told if isinstance(reply, BaseException)]
        assert all(isinstance(reply, UnsupportedOperationError) for reply in refused), refused
        assert len(replies) == 3
        final = await get(replicas[2], task.id)
        order = [m.text for m in final.history if m.text.startswith("a")]
        by_order = [dict(replies)[int(text[1:])] for text in order]
        assert by_order[:2] == ["Question 1?", "Question 2?"]
        assert by_order[2] in ("done", final.text)


async def test_messages_in_passing_reach_the_running_turn_from_another_replica(
    fleet: Fleet,
) -> None:
    agent = Agent("Listener")

    @agent.skill(replies="task")
    async def listen(turn: Turn) -> str:
        heard = []
        async for message in turn.messages():
            heard.append(message.text)
            if message.text == "stop":
                break
        return " ".join(heard)

    one, two = await fleet.add(agent), await fleet.add(agent)
    task = await one.task("go", return_immediately=True)
    more = asyncio.create_task(two.task("more", task_id=task.id))
    async with asyncio.timeout(20):
        while "more" not in [m.text for m in (await get(one, task.id)).history]:
            await let_time_pass(0.005)
    stop = asyncio.create_task(two.task("stop", task_id=task.id))
    replies = await asyncio.wait_for(asyncio.gather(more, stop), 20)
    assert {reply.text for reply in replies} == {"more stop"}


async def test_a_sender_gets_the_task_as_its_own_turn_left_it_though_more_came_since(
    fleet: Fleet,
) -> None:
    agent = quiz()
    one, two = await fleet.add(agent), await fleet.add(agent)
    task = await one.task("go")
    first = await one.task("a0", task_id=task.id)
    second = await one.task("a1", task_id=task.id)
    last = await one.task("a2", task_id=task.id)
    replies = two.executor.remote_replies
    for turn, left in ((1, task), (2, first), (3, second), (4, last)):
        handle = await replies.handle_for(task.id)
        handle.turn = turn
        timer = two.executor.blocking_timer
        wait = await outcome_of(partial(ReplyWait, handle, timer, timeout=5))
        assert await wait.find()
        assert handle.reply == left


@pytest.mark.E2
async def test_a_message_that_no_turn_took_is_refused_on_every_replica(fleet: Fleet) -> None:
    gate = Gate()
    one, two = await fleet.add(gate.agent), await fleet.add(gate.agent)
    task = await one.task("go", return_immediately=True)
    late = [asyncio.create_task(replica.task("hello?", task_id=task.id)) for replica in (one, two)]
    stream = asyncio.create_task(collect(two.stream("hello?", task_id=task.id)))
    await until(lambda: two.executor.remote_replies.waiting == 1)
    record = None
    while record is None or record.waiting < 3:
        record = await one.store.load(task.id)
        await asyncio.sleep(0)
    gate.open.set()
    for told in await asyncio.gather(*late, stream, return_exceptions=True):
        assert isinstance(told, UnsupportedOperationError), told
    final = await get(two, task.id)
    assert "hello?" not in [m.text for m in final.history]


# -- repeats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("replies", ["task", None, "message"])
async def test_a_message_sent_to_several_replicas_at_once_is_answered_once(
    fleet: Fleet, replies: Any
) -> None:
    agent = Agent("Once")
    runs: list[str] = []

    @agent.skill(replies=replies)
    async def answer(turn: Turn) -> str:
        runs.append(where(turn))
        await asyncio.sleep(0.01)
        return f"answer {len(runs)}"

    replicas = [await fleet.add(agent) for _ in range(3)]
    for n in range(5):
        runs.clear()
        told = await asyncio.gather(
            *(replica.send("go", message_id=f"m{n}", context=ONCE) for replica in replicas * 2)
        )
        if replies == "message":
            assert {reply.message_id for reply in told if isinstance(reply, Message)}
            assert len({reply.text for reply in told if isinstance(reply, Message)}) == 1
        else:
            assert len(runs) == 1
            assert {reply.id for reply in told if isinstance(reply, Task)} == {told[0].id}  # type: ignore[union-attr]
            assert {reply.state for reply in told if isinstance(reply, Task)} == {
                TaskState.COMPLETED
            }
        streamed = await collect(replicas[0].stream("go", message_id=f"m{n}", context=ONCE))
        assert len(runs) <= 3
        if replies != "message":
            assert states(streamed)[-1] is TaskState.COMPLETED


async def test_an_answer_that_is_repeated_on_another_replica_is_taken_once(fleet: Fleet) -> None:
    agent = quiz(2)
    one, two = await fleet.add(agent), await fleet.add(agent)
    task = await one.task("go")
    told = await asyncio.gather(
        *(r.task("a0", task_id=task.id, message_id="m", context=ONCE) for r in (one, two) * 2)
    )
    assert {t.status.message.text for t in told if t.status.message} == {"Question 1?"}
    final = await two.task("a1", task_id=task.id)
    assert final.text == "a0 a1"


# -- cancellation (E4) -----------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0.0, 1.0])
async def test_any_replica_cancels_a_running_turn(fleet: Fleet, lost: float) -> None:
    fleet.loses = lost
    gate = Gate()
    one, two = await fleet.add(gate.agent), await fleet.add(gate.agent)
    sender = asyncio.create_task(one.task("go"))
    await until(lambda: bool(gate.runs))
    (task_id,) = one.executor._runners
    assert not two.executor.is_running(task_id)
    canceled = await cancel(two, task_id)
    assert canceled.state is TaskState.CANCELED
    assert (await asyncio.wait_for(sender, 20)).state is TaskState.CANCELED
    assert states(await events_of(one, task_id)).count(TaskState.CANCELED) == 1
    assert await cancel(one, task_id) == canceled


async def test_any_replica_cancels_what_nobody_holds(fleet: Fleet) -> None:
    agent = quiz()
    one, two = await fleet.add(agent), await fleet.add(agent)
    task = await one.task("go")
    assert (await cancel(two, task.id)).state is TaskState.CANCELED
    gate = Gate(max_running=1)
    narrow = Fleet(fleet.new_replica)
    try:
        three = await narrow.add(gate.agent)
        api = await narrow.add(gate.agent, role="api")
        first = await three.task("first", return_immediately=True)
        await until(lambda: bool(gate.runs))
        second = await api.task("second", return_immediately=True)
        assert second.state is TaskState.SUBMITTED
        assert (await cancel(api, second.id)).state is TaskState.CANCELED
        gate.open.set()
        await until_state(api, first.id, TaskState.COMPLETED)
        with pytest.raises(TaskNotCancelableError):
            await cancel(api, first.id)
        assert [text for text, _, _ in gate.runs] == ["first"]
    finally:
        await narrow.close()


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.E4
async def test_cancelling_elsewhere_races_completion_and_all_agree(
    fleet: Fleet, steps: int
) -> None:
    agent = Agent("Racer")

    @agent.skill(replies="task")
    async def race(turn: Turn) -> str:
        for n in range(4):
            await turn.working(str(n))
            await asyncio.sleep(0)
        return "won"

    one, two = await fleet.add(agent), await fleet.add(agent)
    for round_ in range(6):
        task = await one.task("go", return_immediately=True)
        for _ in range(3 * steps + round_):
            await asyncio.sleep(0)
        try:
            told = (await cancel(two, task.id)).state
        except TaskNotCancelableError:
            told = TaskState.COMPLETED
        items = await events_of(two, task.id)
        assert [state for state in states(items) if state.is_terminal] == [told]


# -- queues and roles ------------------------------------------------------------------------------


async def test_an_api_replica_leaves_turns_to_workers(fleet: Fleet) -> None:
    gate = Gate()
    api = await fleet.add(gate.agent, role="api")
    sender = asyncio.create_task(api.task("go"))
    await until(lambda: api.executor.remote_replies.waiting == 1)
    quick = await api.send("hi", metadata={"skill": "quick"})
    assert isinstance(quick, Message)
    assert quick.text == "quick hi"
    worker = await fleet.add(gate.agent, role="worker")
    gate.open.set()
    assert (await asyncio.wait_for(sender, 20)).text == "go"
    assert gate.runs == [("go", 1, worker.name)]
    later = asyncio.create_task(collect(api.stream("more")))
    assert states(await asyncio.wait_for(later, 20))[-1] is TaskState.COMPLETED


async def test_the_line_of_all_replicas_is_bounded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.engine.maintenance.POLL_SECONDS", 0.02)
    gate = Gate(max_running=1, max_queued=2)
    one, two = await fleet.add(gate.agent), await fleet.add(gate.agent)
    running = [await r.task(f"run {r.name}", return_immediately=True) for r in (one, two)]
    await until(lambda: len(gate.runs) == 2)
    waiting: list[Task] = []
    for n in range(2):
        waiting.append(await one.task(f"wait {n}", return_immediately=True))
        # A count that begins before a task is logged may end after it. A count that ends before the
        # append returns may include the task twice.
        await until(lambda: one.executor.queue.length == len(waiting))
    with pytest.raises(OverloadedError):
        await one.task("too many", return_immediately=True)
    await until(lambda: two.executor.queue.backlog == 2)
    with pytest.raises(OverloadedError) as caught:
        await two.task("too many", return_immediately=True)
    assert caught.value.retry_after
    gate.open.set()
    for task in (*running, *waiting):
        await until_state(two, task.id, TaskState.COMPLETED)
    assert len(gate.runs) == 4


# -- draining --------------------------------------------------------------------------------------


async def test_a_replica_that_drains_lets_go_of_what_a_stubborn_function_holds(
    fleet: Fleet,
) -> None:
    agent = Agent("Stubborn", execution=Execution(cancel_grace=0.05, max_attempts=1))
    runs: list[Turn] = []
    finish = asyncio.Event()

    @agent.skill(replies="task")
    async def stubborn(turn: Turn) -> str:
        runs.append(turn)
        while turn.attempt == 1 and not finish.is_set():
            try:
                await finish.wait()
            except asyncio.CancelledError:
                continue
        return f"attempt {turn.attempt}"

    one = await fleet.add(agent)
    task = await one.task("go", return_immediately=True)
    await until(lambda: len(runs) == 1)
    two = await fleet.add(agent)
    await fleet.stop(one)
    assert (await until_state(two, task.id, TaskState.COMPLETED)).text == "attempt 2"
    finish.set()
