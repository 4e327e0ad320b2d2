"""Replies to a message: one response, and every form of a stream."""

from __future__ import annotations

import asyncio

import pytest

from parley import (
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from parley.store.fold import Fold
from tests.contract.saying import PARTS, as_told

pytestmark = pytest.mark.anyio


async def test_a_direct_message_comes_back_with_all_its_parts(remote, speech):
    message = Message(
        message_id="m-1",
        role=Role.USER,
        parts=PARTS,
        metadata={"skill": "say"},
        reference_task_ids=(),
    )
    reply = (await remote.send(message, context_id="c-direct")).reply
    assert isinstance(reply, Message)
    assert reply.role is Role.AGENT
    assert reply.context_id == "c-direct"
    assert reply.message_id not in ("", "m-1")
    assert reply.parts[0] == Part(text="these")
    assert reply.parts[1:] == as_told(speech, PARTS[1:])


@pytest.mark.parametrize("file", [Part(raw=b"x"), Part(url="https://example.com/x")])
async def test_a_file_without_a_media_type_is_taken_where_other_types_are_not(remote, file):
    parts = (Part(text="words please"), file)
    task = await remote.send(Message(message_id="m-1", role=Role.USER, parts=parts))
    assert (task.state, task.artifacts[0].parts[0].text) == (TaskState.COMPLETED, "words")


@pytest.mark.parametrize(
    ("skill", "state", "words"),
    [
        ("work", TaskState.COMPLETED, ""),
        ("fail", TaskState.FAILED, "it does not go"),
        ("reject", TaskState.REJECTED, "not for me"),
    ],
)
async def test_a_task_ends_in_the_state_that_its_agent_gives_it(remote, skill, state, words):
    task = await remote.send(f"{skill} please")
    assert task.id
    assert task.state is state
    assert (task.status.message.text if task.status.message else "") == words
    assert task.status.timestamp is not None
    assert task.history[0].text == f"{skill} please"
    assert task.history[0].role is Role.USER
    assert task.history[0].task_id == task.id
    assert task.history[0].context_id == task.context_id
    assert await remote.get(task.id) == task


async def test_what_an_agent_raises_is_not_told(remote):
    task = await remote.send("crash please")
    assert task.state is TaskState.FAILED
    assert "hunter2" not in str(task)


async def test_artifacts_come_whole(remote, speech):
    task = await remote.send("whole please")
    text, data, raw, url = task.artifacts
    assert (text.name, text.description) == ("text", "plain words")
    assert text.parts == (Part(text="some text"),)
    assert data.parts[0].data == {"key": "value", "count": 42, "deep": [1, 2.5, None, True]}
    assert raw.parts[0].raw == b"\x00\x01\xff"
    assert raw.parts[0].media_type == "application/octet-stream"
    assert url.parts[0].url == "https://example.com/a.png"
    assert (url.parts[0].filename, url.parts[0].media_type) == ("a.png", "image/png")
    assert url.metadata == {"of": "the web"}
    assert len({artifact.artifact_id for artifact in task.artifacts}) == 4


async def test_authentication_is_asked_for_and_the_task_goes_on(remote):
    asked = await remote.send("auth please")
    assert asked.state is TaskState.AUTH_REQUIRED
    assert "https://example.com" in asked.status.message.text
    done = await remote.send("the key", task_id=asked.id)
    assert done.state is TaskState.COMPLETED
    assert done.artifacts[0].parts[0].text == "thanks for the key"


async def test_messages_of_one_context_are_tasks_side_by_side(remote, speech):
    first = await remote.send("work one", context_id=None)
    second = await remote.send("work two", context_id=first.context_id, references=[first])
    assert second.context_id == first.context_id
    assert second.id != first.id
    # The proto of 0.3 has no references, and its HTTP+JSON is the JSON of this proto.
    lost = speech.is_old and speech.binding != "JSONRPC"
    assert second.history[0].reference_task_ids == (() if lost else (first.id,))


async def test_metadata_of_messages_is_kept(remote):
    metadata = {"a": {"b": [1, "two", None, False]}}
    message = Message(
        message_id="m-1", role=Role.USER, parts=(Part(text="work please"),), metadata=metadata
    )
    task = await remote.send(message)
    assert task.history[0].metadata == metadata
    assert task.history[0].message_id == "m-1"


# -- every form of a stream: its events, their order, and its end ----------------------------------


BOUND = 10.0


async def told(stream):
    """All events of a stream, which has to end."""
    async with asyncio.timeout(BOUND):
        return [event async for event in stream]


def states(events):
    return [
        event.status.state for event in events if isinstance(event, Task | TaskStatusUpdateEvent)
    ]


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


async def test_a_cancellation_ends_the_streams_of_a_task(remote):
    task = await remote.send("hold please", return_immediately=True)
    stream = remote.subscribe(task.id)
    async with asyncio.timeout(BOUND):
        assert isinstance(await anext(stream), Task)
        canceled = await remote.cancel(task.id)
        rest = [event async for event in stream]
    assert canceled.state is TaskState.CANCELED
    assert states(rest)[-1] is TaskState.CANCELED
