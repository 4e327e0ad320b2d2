"""Every shape of a stream: what comes, in which order, and when it ends."""

from __future__ import annotations

import asyncio

import pytest

from parley import Message, Part, Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.model.errors import TaskNotFoundError, UnsupportedOperationError
from parley.store.fold import Fold
from tests.contract.agents import release

pytestmark = pytest.mark.anyio

BOUND = 10.0


async def told(stream):
    """All events of a stream, which has to end."""
    async with asyncio.timeout(BOUND):
        return [event async for event in stream]


def states(events):
    return [
        event.status.state for event in events if isinstance(event, Task | TaskStatusUpdateEvent)
    ]


async def test_a_stream_of_a_direct_message_is_that_message(remote):
    events = await told(remote.stream("say hello"))
    assert [type(event) for event in events] == [Message]
    assert events[0].text == "hello"


async def test_a_stream_begins_with_the_task_and_ends_with_its_end(remote):
    events = await told(remote.stream("work please"))
    assert isinstance(events[0], Task)
    assert states(events)[-2:] == [TaskState.WORKING, TaskState.COMPLETED]
    ids = {event.task_id for event in events[1:]} | {events[0].id}
    assert len(ids) == 1
    assert {event.context_id for event in events} == {events[0].context_id}


@pytest.mark.parametrize(
    ("skill", "state"), [("fail", TaskState.FAILED), ("reject", TaskState.REJECTED)]
)
async def test_a_stream_tells_how_a_task_failed(remote, skill, state):
    events = await told(remote.stream(f"{skill} please"))
    assert states(events)[-1] is state
    assert isinstance(events[-1], TaskStatusUpdateEvent)
    assert events[-1].status.message.text in ("it does not go", "not for me")


async def test_an_artifact_is_streamed_in_pieces(remote):
    events = await told(remote.stream("chunks please"))
    pieces = [event for event in events if isinstance(event, TaskArtifactUpdateEvent)]
    assert "".join(part.text or "" for e in pieces for part in e.artifact.parts) == "one two three"
    assert {event.artifact.artifact_id for event in pieces} == {pieces[0].artifact.artifact_id}
    assert pieces[0].artifact.name == "report"
    assert not pieces[0].append
    assert all(event.append for event in pieces[1:])
    assert [event.last_chunk for event in pieces[:-1]] == [False] * (len(pieces) - 1)
    assert pieces[-1].last_chunk
    task = await remote.get(events[0].id)
    assert "".join(part.text for part in task.artifacts[0].parts) == "one two three"


async def test_a_streamed_text_is_one_text_wherever_its_task_is_read(remote, speech):
    said = await remote.send("parts please")
    sent = await told(remote.stream("parts please", context_id=said.context_id))
    pieces = [event for event in sent if isinstance(event, TaskArtifactUpdateEvent)]
    assert len(pieces) >= 9  # each as it was written
    folding = Fold(sent[0])
    for event in sent[1:]:
        folding.apply(event)
    read = [said, await remote.get(sent[0].id), folding.task]
    if not speech.is_old:
        listed = await remote.list(context_id=said.context_id, include_artifacts=True)
        read += listed.tasks
    for task in read:
        answer, parts = task.artifacts
        assert [part.text for part in answer.parts] == ["one two three"]
        shown = [part.data if part.text is None else part.text for part in parts.parts]
        assert shown == ["one", "two", {"three": 3}, "four five"]


async def test_whole_artifacts_are_streamed_whole(remote):
    events = await told(remote.stream("whole please"))
    made = [event for event in events if isinstance(event, TaskArtifactUpdateEvent)]
    assert [event.artifact.name for event in made] == ["text", "data", "bytes.bin", "url"]
    assert all(event.last_chunk and not event.append for event in made)
    task = await remote.get(events[0].id)
    assert tuple(event.artifact for event in made) == task.artifacts


async def test_a_stream_ends_where_the_caller_is_asked(remote):
    events = await told(remote.stream("ask please"))
    assert states(events)[-1] is TaskState.INPUT_REQUIRED
    assert events[-1].status.message.text == "Which size?"
    answered = await told(remote.stream("42", task_id=events[0].id))
    assert states(answered)[-1] is TaskState.COMPLETED
    assert isinstance(answered[0], Task)
    assert answered[0].id == events[0].id


async def test_a_subscription_begins_with_the_task_and_ends_with_it(remote):
    task = await remote.send("hold please", return_immediately=True)
    stream = remote.subscribe(task.id)
    async with asyncio.timeout(BOUND):
        first = await anext(stream)
        assert isinstance(first, Task)
        assert first.id == task.id
        release(task)
        rest = [event async for event in stream]
    assert states(rest)[-1] is TaskState.COMPLETED
    done = [event for event in rest if isinstance(event, TaskArtifactUpdateEvent)]
    assert done[0].artifact.parts == (Part(text="let go"),)


async def test_subscribers_hear_the_same_and_one_that_leaves_disturbs_nobody(remote):
    task = await remote.send("hold please", return_immediately=True)
    streams = [remote.subscribe(task.id) for _ in range(3)]
    async with asyncio.timeout(BOUND):
        for stream in streams:
            assert isinstance(await anext(stream), Task)
        await streams.pop().aclose()
        release(task)
        first, second = [[event async for event in stream] for stream in streams]
    # Who comes in between may be told of progress; all are told of the same end.
    assert first[-2:] == second[-2:]
    assert states(first)[-1] is TaskState.COMPLETED


async def test_a_cancellation_ends_the_streams_of_a_task(remote):
    task = await remote.send("hold please", return_immediately=True)
    stream = remote.subscribe(task.id)
    async with asyncio.timeout(BOUND):
        assert isinstance(await anext(stream), Task)
        canceled = await remote.cancel(task.id)
        rest = [event async for event in stream]
    assert canceled.state is TaskState.CANCELED
    assert states(rest)[-1] is TaskState.CANCELED


async def test_a_task_that_ended_cannot_be_subscribed_to(remote):
    task = await remote.send("work please")
    with pytest.raises(UnsupportedOperationError):
        await told(remote.subscribe(task.id))


async def test_a_task_that_there_is_not_cannot_be_subscribed_to(remote):
    with pytest.raises(TaskNotFoundError):
        await told(remote.subscribe("nobody"))


async def test_a_stream_of_a_task_that_ended_is_refused_before_it_begins(remote):
    task = await remote.send("work please")
    with pytest.raises(UnsupportedOperationError):
        await told(remote.stream("more", task_id=task.id))
