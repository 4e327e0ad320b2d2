"""No event is lost, doubled or reordered when the server is killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from typing import Any

import pytest

import parley
from parley import Role, Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.client import question
from parley.store.fold import fold
from parley.store.sqlite.store import SqliteTaskStore
from tests.faults.conftest import Served
from tests.faults.served import CHUNKS
from tests.kit.waiting import let_time_pass

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KILLS = int(os.environ.get("PARLEY_KILLS", "8"))
WHOLE = "".join(f"{n} " for n in range(CHUNKS))


async def read(agent: Any, text: str, skill: str, numbers: list[int]) -> list[Any]:
    """Read a stream to its end, and record the number of every event."""
    events = []
    stream = agent.stream(text, metadata={"skill": skill})
    async for event in stream:
        events.append(event)
        numbers.append(stream.seq)
    return events


@pytest.mark.parametrize("seed", range(KILLS))
async def test_a_stream_survives_kills_at_random_moments(served: Served, seed: int) -> None:
    chance = random.Random(seed)
    numbers: list[int] = []
    async with parley.connect(served.url) as agent:
        reader = asyncio.create_task(read(agent, "go", "report", numbers))
        for _ in range(chance.randint(1, 3)):
            await let_time_pass(chance.uniform(0.0, 0.35))
            await served.end()
            await let_time_pass(chance.uniform(0.0, 0.05))
            await served.start()
        events = await asyncio.wait_for(reader, 60)
        assert numbers == list(range(1, len(events) + 1))
        task_id = events[0].id
        assert sum(isinstance(event, Task) for event in events) == 1
        statuses = [e.status.state for e in events if isinstance(e, TaskStatusUpdateEvent)]
        assert [s for s in statuses if s.is_terminal] == [TaskState.COMPLETED]
        assert text_of(events) == WHOLE
        task = await agent.get(task_id)
        assert "".join(a.text for a in task.artifacts) == WHOLE
        again = [event async for event in agent.subscribe(task_id, after=0)]
        assert again == events
    await served.end()
    await check_log(served, task_id)


def text_of(events: list[Any]) -> str:
    """Return the text that results from the updates: each replaces or appends."""
    artifacts: dict[str, str] = {}
    for event in events:
        if isinstance(event, TaskArtifactUpdateEvent):
            before = artifacts.get(event.artifact.artifact_id, "") if event.append else ""
            artifacts[event.artifact.artifact_id] = before + event.artifact.text
    return "".join(artifacts.values())


async def check_log(served: Served, task_id: str) -> None:
    """Check that the log has no gap and one end, and that the snapshot is its fold (L1, L3, L4)."""
    store = SqliteTaskStore(served.store)
    await store.open(lambda _: None)
    try:
        events: list[Any] = []
        while page := await store.events(task_id, len(events), 500):
            events += page
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        record = await store.load(task_id)
        assert record is not None
        assert record.seq == len(events)
        assert not record.turn_open
        assert record.task == fold(e.event for e in events)
    finally:
        await store.close()


@pytest.mark.E3
async def test_steps_that_were_done_are_not_done_again(served: Served) -> None:
    chance = random.Random(7)
    async with parley.connect(served.url) as agent:
        tasks = [
            await agent.send("go", metadata={"skill": "steps"}, return_immediately=True)
            for _ in range(3)
        ]
        for _ in range(3):
            await let_time_pass(chance.uniform(0.01, 0.05))
            await served.end()
            await served.start()
        for task in tasks:
            assert task.id
            done = await agent.wait(task.id, timeout=30)
            assert done.state is TaskState.COMPLETED
            assert done.text == "0 1 2 3 4 5 6 7 8 9"
    acts = Counter(served.store.with_name("tasks.db.acts").read_text().split("\n")[:-1])
    # A kill between an act and its log entry repeats only this act.
    assert sum(acts.values()) - len(acts) <= 3 * len(tasks)
    assert len(acts) == 10 * len(tasks)


async def killed_in_its_turn(
    served: Served, skill: str, headers: dict[str, str], **options: Any
) -> tuple[str, list[Any]]:
    """Send a message, kill the server in its turn, and return the turn's final text.

    Return the task's id and its states too.
    """
    async with parley.connect(served.url, headers=headers) as agent:
        stream = agent.stream("go", metadata={"skill": skill}, **options)
        words, states, task_id = "", [], options.get("task_id", "")
        async for event in stream:
            task_id = event.id if isinstance(event, Task) else task_id
            if isinstance(event, TaskStatusUpdateEvent):
                states.append(event.status.state)
                words = event.status.message.text if event.status.message else words
                if words == "kill me":
                    words = ""
                    await served.end()
                    await served.start()
        return words or (await agent.get(task_id)).text, [task_id, *states]


async def test_whose_a_turn_is_is_known_after_kills(served: Served) -> None:
    """In the first turn and in a later turn, each with the claims of its message."""

    async def asked(email: str, **options: Any) -> tuple[str, list[Any]]:
        headers = {"x-user": "bob", "x-email": email}
        return await killed_in_its_turn(served, "whose", headers, **options)

    words, (task_id, *_, last) = await asyncio.wait_for(asked("b@one"), 60)
    assert last is TaskState.INPUT_REQUIRED
    assert words == "bob one True {'email': 'b@one'}"
    words, (*_, last) = await asyncio.wait_for(asked("b@two", task_id=task_id), 60)
    assert last is TaskState.COMPLETED
    assert words == "bob one True {'email': 'b@two'}"
    await served.end()
    assert b"hunter2" not in served.store.read_bytes()


async def test_a_conversation_goes_on_over_kills(served: Served) -> None:
    async with parley.connect(served.url) as agent:
        task = await agent.send("go", metadata={"skill": "chat"})
        for answer in ("a", "b", "c"):
            assert task.id
            assert task.state is TaskState.INPUT_REQUIRED
            await served.end()
            await served.start()
            task = await agent.send(answer, task=task)
        assert task.id
        assert task.state is TaskState.COMPLETED
        assert task.text == "a b c"
        said = [m.text for m in task.history]
        assert said == ["go", "Question 0?", "a", "Question 1?", "b", "Question 2?", "c"]


async def test_typed_input_and_answers_are_completed_over_kills(served: Served) -> None:
    said: list[Any] = [{"nights": 0.5}, '{"nights": 2}', "Rome", "huge", "small"]
    open_fields: list[list[str]] = []
    async with parley.connect(served.url) as agent:
        task = await agent.send("A room, please", metadata={"skill": "stay"})
        for answer in said:
            assert task.id
            asked = question(task)
            assert asked is not None
            open_fields.append([problem.field for problem in asked.problems])
            await served.end()
            await served.start()
            task = await agent.send(answer, task=task)
        assert task.id
        assert (task.state, task.text) == (TaskState.COMPLETED, "Rome 2 small")
    assert open_fields == [["city", "nights"], ["city", "nights"], ["city"], [], ["$"]]


@pytest.mark.E3
async def test_a_run_after_a_kill_knows_that_its_answer_is_not_new(served: Served) -> None:
    async with parley.connect(served.url) as agent:
        task = await agent.send("go", metadata={"skill": "confirm"})
        assert task.id
        assert task.state is TaskState.INPUT_REQUIRED
        said = []
        async for event in agent.stream("yes", task=task):
            if isinstance(event, TaskStatusUpdateEvent) and event.status.message:
                said.append(event.status.message.text)
                if said == ["yes False"]:
                    await served.end()
                    await served.start()
        assert said[:2] == ["yes False", "yes True"]
        done = await agent.get(task.id)
        assert (done.state, done.text) == (TaskState.COMPLETED, "yes True")
        # The history contains an answer as the original message.
        assert [m.text for m in done.history if m.role is Role.USER] == ["go", "yes"]


async def test_what_was_updated_is_there_after_kills(served: Served) -> None:
    """Every answered call counts, and no call counts more than once."""
    made, told = 0, []

    async def call(agent: Any) -> None:
        nonlocal made
        made += 1
        with contextlib.suppress(parley.ClientError, parley.A2AError):
            reply = await agent.send("go", context_id="c", metadata={"skill": "tally"})
            told.append(int(reply.text))

    async with parley.connect(served.url, retries=0) as agent:
        for _ in range(3):
            calls = asyncio.gather(*(call(agent) for _ in range(20)))
            while not told or len(told) % 20 < 3:
                await asyncio.sleep(0)
                if calls.done():
                    break
            await served.end()
            await calls
            await served.start()
        last = await agent.send("go", context_id="c", metadata={"skill": "tally"})
    assert len(set(told)) == len(told)
    assert len(told) < int(last.text) <= made + 1


@pytest.mark.E3
async def test_tasks_that_take_a_number_as_a_step_take_one_whatever_is_killed(
    served: Served,
) -> None:
    chance = random.Random(11)
    async with parley.connect(served.url) as agent:
        options = {"context_id": "c", "metadata": {"skill": "numbered"}}
        tasks = [await agent.send("go", return_immediately=True, **options) for _ in range(8)]
        for _ in range(3):
            await let_time_pass(chance.uniform(0.0, 0.05))
            await served.end()
            await served.start()
        numbers = []
        for task in tasks:
            assert task.id
            done = await agent.wait(task.id, timeout=30)
            assert done.state is TaskState.COMPLETED
            numbers.append(int(done.text))
    assert len(set(numbers)) == len(tasks)
    # A kill between the update and its log entry skips at most one number per task.
    assert max(numbers) <= len(tasks) * 4


async def test_a_blocking_sender_gets_its_answer_over_a_kill(served: Served) -> None:
    async with parley.connect(served.url) as agent:
        sender = asyncio.create_task(agent.send("go", metadata={"skill": "report"}))
        await let_time_pass(0.15)
        await served.end()
        await served.start()
        task = await asyncio.wait_for(sender, 30)
        assert task.id
        assert task.text == WHOLE
        page = await agent.list()
        assert page.total_size == 1


async def test_a_server_that_is_told_twice_to_end_fails_no_task(served: Served) -> None:
    async with parley.connect(served.url) as agent:
        first = await agent.send("go", metadata={"skill": "forever"}, return_immediately=True)
        assert first.id
        # A waiting sender keeps the server open after the first signal.
        waiting = asyncio.create_task(agent.send("go", metadata={"skill": "forever"}))
        while (await agent.list(status=TaskState.WORKING)).total_size < 2:
            await let_time_pass(0.01)
        assert served.process is not None
        served.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(OSError):  # the server accepts no more connections
            while True:
                _, writer = await asyncio.open_connection("127.0.0.1", served.port)
                writer.close()
                await let_time_pass(0.01)
        assert await served.end(signal.SIGTERM) == 0
        await served.start()
        tasks = (await agent.list()).tasks
        assert len(tasks) == 2
        for task in tasks:
            assert (await agent.cancel(task.id)).state is TaskState.CANCELED
        answer = await asyncio.wait_for(waiting, 30)
        assert answer.id
        assert answer.state is TaskState.CANCELED


async def test_a_terminated_server_lets_go_and_its_successor_goes_on(served: Served) -> None:
    numbers: list[int] = []
    async with parley.connect(served.url) as agent:
        endless = await agent.send("go", metadata={"skill": "forever"}, return_immediately=True)
        assert endless.id
        reader = asyncio.create_task(read(agent, "go", "report", numbers))
        await let_time_pass(0.1)
        assert await served.end(signal.SIGTERM) == 0
        await served.start()
        events = await asyncio.wait_for(reader, 30)
        assert numbers == list(range(1, len(events) + 1))
        assert text_of(events) == WHOLE
        assert (await agent.get(endless.id)).state is TaskState.WORKING
        assert (await agent.cancel(endless.id)).state is TaskState.CANCELED
    await served.end()
    await check_log(served, endless.id)


async def test_the_trace_of_a_turn_is_known_after_kills(served: Served) -> None:
    """Both the first turn and a later turn belong to the trace of their message."""
    first = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    second = "00-11111111111111111111111111111111-2222222222222222-00"

    async def asked(parent: str, state: str, **options: Any) -> tuple[str, list[Any]]:
        headers = {"traceparent": parent, "tracestate": state}
        return await killed_in_its_turn(served, "traced", headers, **options)

    words, (task_id, *_, last) = await asyncio.wait_for(asked(first, "a=1"), 60)
    assert (words, last) == (f"{first} a=1", TaskState.INPUT_REQUIRED)
    words, (*_, last) = await asyncio.wait_for(asked(second, "b=2", task_id=task_id), 60)
    assert (words, last) == (f"{second} b=2", TaskState.COMPLETED)
