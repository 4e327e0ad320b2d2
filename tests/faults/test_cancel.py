"""Cancellation against every other event of a task at the same moment, over HTTP."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import (
    Agent,
    Execution,
    Message,
    RemoteAgent,
    Task,
    TaskState,
    TaskStatusUpdateEvent,
    Turn,
)
from parley.model.errors import TaskNotCancelableError, UnsupportedOperationError
from parley.server.run import serving
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

ROUNDS = 100
AT_ONCE = 20
CANCELED, COMPLETED, FAILED = TaskState.CANCELED, TaskState.COMPLETED, TaskState.FAILED


@asynccontextmanager
async def called(agent: Agent, tmp_path: Path) -> AsyncIterator[RemoteAgent]:
    """Serve an agent on a durable store, and yield a client without retries."""
    app = parley.asgi(agent, store=f"sqlite:///{tmp_path / 'tasks.db'}", drain=0.5)
    async with serving(app) as url, parley.connect(url, retries=0) as remote:
        async with asyncio.timeout(60):
            yield remote


def state_of(reply: Task | Message | BaseException) -> TaskState:
    """The state that a caller saw: in the task, or in the error of the cancellation."""
    if isinstance(reply, TaskNotCancelableError):
        return TaskState(reply.metadata["state"])
    assert reply.id, reply
    return reply.state


async def events_of(stream: Any) -> list[Any]:
    return [event async for event in stream]


def ends_of(events: list[Any]) -> list[TaskState]:
    """Every terminal state in a reader's events."""
    states = [e.status.state for e in events if isinstance(e, Task | TaskStatusUpdateEvent)]
    return [state for state in states if state.is_terminal]


async def eventually(remote: RemoteAgent, task_id: str, state: TaskState) -> None:
    async with asyncio.timeout(5):
        while (await remote.get(task_id)).state is not state:
            await let_time_pass(0.001)


class Racers:
    """Skills that end when a test opens their gate, each in a different way."""

    def __init__(self) -> None:
        self.agent = Agent("Racers", execution=Execution(cancel_grace=0.05))
        self.gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        for skill in (self.returns, self.streams, self.raises, self.goes_on, self.asks):
            self.agent.skill(replies="task")(skill)

    async def returns(self, turn: Turn) -> str:
        await self.gates[turn.text].wait()
        return "done"

    async def streams(self, turn: Turn) -> AsyncIterator[str]:
        yield "one "
        await self.gates[turn.text].wait()
        yield "two "
        yield "three"

    async def raises(self, turn: Turn) -> str:
        await self.gates[turn.text].wait()
        turn.fail("it did not work")

    async def goes_on(self, turn: Turn) -> str:
        gate = self.gates[turn.text]
        try:
            await gate.wait()
        except asyncio.CancelledError:
            await turn.working("not now")
        return "done"

    async def asks(self, turn: Turn) -> str:
        await self.gates[turn.text].wait()
        return (await turn.ask("Sure?")).text


async def race(racers: Racers, remote: RemoteAgent, skill: str, number: int) -> TaskState:
    """End a task and cancel it at nearly the same moment; return the end that all readers see."""
    name = f"{skill}-{number}"
    started = await remote.send(name, metadata={"skill": skill}, return_immediately=True)
    assert started.id
    stream = remote.subscribe(started.id, after=0)
    first = await anext(stream)
    reader = asyncio.create_task(events_of(stream))
    # The pause ranges from well before the cancellation arrives to well after.
    pause = 0.0005 * 1.35 ** (number % 25)
    asyncio.get_running_loop().call_later(pause, racers.gates[name].set)
    [answer] = await asyncio.gather(remote.cancel(started.id), return_exceptions=True)
    told = state_of(answer)
    seen = await asyncio.wait_for(reader, 5)
    replayed = await events_of(remote.subscribe(started.id, after=0))
    assert replayed == [first, *seen]
    assert ends_of(seen) == [told], "the stream needs one end, equal to the reply"
    assert (await remote.get(started.id)).state is told
    if told is COMPLETED:
        with pytest.raises(TaskNotCancelableError):
            await remote.cancel(started.id)
    return told


@pytest.mark.parametrize(
    ("skill", "possible"),
    [
        ("returns", {CANCELED, COMPLETED}),
        ("streams", {CANCELED, COMPLETED}),
        ("raises", {CANCELED, FAILED}),
        ("goes_on", {CANCELED, COMPLETED}),
        ("asks", {CANCELED}),
    ],
)
@pytest.mark.E4
async def test_a_task_ends_once_however_cancel_and_its_own_end_fall(
    skill: str, possible: set[TaskState], tmp_path: Path
) -> None:
    racers = Racers()
    ends: set[TaskState] = set()
    async with called(racers.agent, tmp_path) as remote:
        for begin in range(0, ROUNDS, AT_ONCE):
            races = [race(racers, remote, skill, begin + n) for n in range(AT_ONCE)]
            ends.update(await asyncio.gather(*races))
    assert ends == possible


@pytest.mark.E4
async def test_the_sender_is_told_the_same_end_as_who_cancels(tmp_path: Path) -> None:
    racers = Racers()
    async with called(racers.agent, tmp_path) as remote:
        for number in range(30):
            name = f"returns-{number}"
            context = f"context-{number}"
            sender = asyncio.create_task(
                remote.send(name, metadata={"skill": "returns"}, context_id=context)
            )
            while not (page := await remote.list(context_id=context)).tasks:
                await let_time_pass(0.001)
            canceling = asyncio.create_task(remote.cancel(page.tasks[0].id))
            for _ in range(number):
                await asyncio.sleep(0)
            racers.gates[name].set()
            replies = await asyncio.gather(sender, canceling, return_exceptions=True)
            assert state_of(replies[0]) is state_of(replies[1])


async def test_cancel_and_an_answer_at_once_leave_nobody_waiting(tmp_path: Path) -> None:
    """The turn also notices a cancellation during its preparation."""
    agent = Agent("Endless", execution=Execution(cancel_grace=0.1))

    @agent.skill
    async def endless(turn: Turn) -> str:
        await turn.ask("Go on?")
        await asyncio.Event().wait()
        return "never"

    async def both(remote: RemoteAgent, number: int) -> None:
        parked = await remote.send("go")
        assert parked.id
        answering = asyncio.create_task(remote.send("yes", task=parked))
        await let_time_pass(number % 12 * 0.0003)
        canceled = await asyncio.wait_for(remote.cancel(parked.id), 5)
        assert canceled.state is CANCELED
        [answer] = await asyncio.wait_for(asyncio.gather(answering, return_exceptions=True), 5)
        if not isinstance(answer, UnsupportedOperationError):  # the cancellation was first
            assert state_of(answer) is CANCELED
        final = await remote.get(parked.id)
        assert final == canceled

    async with called(agent, tmp_path) as remote:
        for begin in range(0, 120, 4):
            await asyncio.gather(*(both(remote, begin + n) for n in range(4)))


async def test_five_callers_who_cancel_one_task_are_all_told_that_it_is_canceled(
    tmp_path: Path,
) -> None:
    racers = Racers()
    async with called(racers.agent, tmp_path) as remote:
        for skill in ("returns", "streams", "goes_on"):
            task = await remote.send("go", metadata={"skill": skill}, return_immediately=True)
            assert task.id
            told = await asyncio.gather(*(remote.cancel(task.id) for _ in range(5)))
            assert {t.state for t in told} <= {CANCELED}
            assert len({t.status.timestamp for t in told}) == 1


async def test_parked_and_queued_tasks_are_canceled_at_once(tmp_path: Path) -> None:
    agent = Agent("Narrow", execution=Execution(max_running=1, cancel_grace=0.1))
    begun, gate = asyncio.Event(), asyncio.Event()

    @agent.skill(replies="task")
    async def narrow(turn: Turn) -> str:
        if turn.text == "ask":
            await turn.ask("What?")
        begun.set()
        await gate.wait()
        return "done"

    async with called(agent, tmp_path) as remote:
        parked = await remote.send("ask")
        assert parked.id
        running = await remote.send("run", return_immediately=True)
        queued = await remote.send("wait", return_immediately=True)
        assert running.id
        assert queued.id
        await asyncio.wait_for(begun.wait(), 5)
        readers = []
        for task in (parked, queued):
            stream = remote.subscribe(task.id)
            await anext(stream)
            readers.append(asyncio.create_task(events_of(stream)))
        for task in (parked, queued):
            assert (await remote.cancel(task.id)).state is CANCELED
        for reader in readers:
            assert ends_of(await asyncio.wait_for(reader, 5)) == [CANCELED]
        gate.set()
        await eventually(remote, running.id, COMPLETED)
        for task in (parked, queued):
            with pytest.raises(UnsupportedOperationError):
                await remote.send("more", task_id=task.id)


async def test_five_callers_who_answer_one_question_each_get_their_own_turn(tmp_path: Path) -> None:
    agent = Agent("Quiz")

    @agent.skill
    async def quiz(turn: Turn) -> str:
        return " ".join([(await turn.ask(f"Question {n}?")).text for n in range(3)])

    async def answer(remote: RemoteAgent, task: Task, number: int) -> tuple[int, str]:
        """Send an answer, every other time as a stream, and return the end of its own turn."""
        said = f"answer-{number}"
        if number % 2:
            reply = await remote.send(said, task_id=task.id)
            assert reply.id
            return number, reply.status.message.text if reply.status.message else reply.text
        events = await events_of(remote.stream(said, task_id=task.id))
        end = events[-1]
        assert isinstance(end, TaskStatusUpdateEvent)
        return number, end.status.message.text if end.status.message else "done"

    async with called(agent, tmp_path) as remote:
        for _ in range(10):
            task = await remote.send("go")
            assert task.id
            replies = await asyncio.gather(
                *(answer(remote, task, n) for n in range(5)), return_exceptions=True
            )
            taken = [reply for reply in replies if isinstance(reply, tuple)]
            refused = [reply for reply in replies if not isinstance(reply, tuple)]
            assert all(isinstance(r, UnsupportedOperationError) for r in refused), refused
            assert len(taken) == 3
            final = await remote.get(task.id)
            assert final.state is COMPLETED
            said = [m.text for m in final.history if m.text.startswith("answer")]
            assert final.text == " ".join(said)
            # The agent handles the answers in order, and each sender sees the end of its own turn.
            told = {f"answer-{number}": text for number, text in taken}
            assert [told[text] for text in said][:2] == ["Question 1?", "Question 2?"]
            assert told[said[2]] in ("done", final.text)
