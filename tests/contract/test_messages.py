"""What comes of a message that is sent, waited for, and answered once."""

from __future__ import annotations

import pytest

from parley import Message, Part, Role, Task, TaskState
from parley.model.errors import InvalidParamsError, UnsupportedOperationError
from parley.model.operations import SendMessageConfiguration, SendMessageRequest
from tests.contract.agents import release
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
    reply = await remote.send(message, context_id="c-direct")
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


async def test_a_message_without_a_context_is_given_one(remote):
    reply = await remote.send("say hello")
    assert isinstance(reply, Message)
    assert reply.context_id
    assert reply.text == "hello"


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
    assert isinstance(task, Task)
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


async def test_a_question_is_answered_in_the_same_task(remote):
    asked = await remote.send("ask please")
    assert asked.state is TaskState.INPUT_REQUIRED
    assert asked.status.message.text == "Which size?"
    done = await remote.send("42", task_id=asked.id)
    assert (done.id, done.context_id) == (asked.id, asked.context_id)
    assert done.state is TaskState.COMPLETED
    assert done.artifacts[0].parts == (Part(text="size 42"),)
    assert [message.text for message in done.history] == ["ask please", "Which size?", "42"]


async def test_authentication_is_asked_for_and_the_task_goes_on(remote):
    asked = await remote.send("auth please")
    assert asked.state is TaskState.AUTH_REQUIRED
    assert "https://example.com" in asked.status.message.text
    done = await remote.send("the key", task_id=asked.id)
    assert done.state is TaskState.COMPLETED
    assert done.artifacts[0].parts[0].text == "thanks for the key"


async def test_a_task_can_be_returned_as_it_begins(remote):
    task = await remote.send("hold please", return_immediately=True)
    assert isinstance(task, Task)
    assert not task.state.is_terminal
    release(task)
    assert (await remote.wait(task.id, timeout=5)).state is TaskState.COMPLETED


@pytest.mark.parametrize(("length", "texts"), [(None, 3), (0, 0), (1, 1), (2, 2), (50, 3)])
async def test_as_much_of_the_history_comes_as_is_asked_for(remote, speech, length, texts):
    asked = await remote.send("ask please")
    done = await remote.send("42", task_id=asked.id, history_length=length)
    if length == 0 and speech.binding == "GRPC" and speech.is_old:
        texts = 3  # a plain int32: 0 is what is there when nothing is said
    expected = ["ask please", "Which size?", "42"][3 - texts :]
    assert [message.text for message in done.history] == expected
    again = await remote.get(done.id, history_length=length)
    assert [message.text for message in again.history] == expected


async def test_messages_of_one_context_are_tasks_side_by_side(remote, speech):
    first = await remote.send("work one", context_id=None)
    second = await remote.send("work two", context_id=first.context_id, references=[first])
    assert second.context_id == first.context_id
    assert second.id != first.id
    # The proto of 0.3 has no references, and its HTTP+JSON is the JSON of its proto.
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


async def test_a_task_that_ended_takes_no_more_messages(remote):
    task = await remote.send("work please")
    with pytest.raises(UnsupportedOperationError):
        await remote.send("more", task_id=task.id)


async def test_a_context_that_is_not_the_tasks_is_refused(remote):
    task = await remote.send("ask please")
    with pytest.raises(InvalidParamsError):
        await remote.send("42", task_id=task.id, context_id="another")


async def test_what_is_wrong_about_a_message_is_named(remote):
    request = SendMessageRequest(
        message=Message(message_id="m", role=Role.USER, parts=(Part(text="work please"),)),
        configuration=SendMessageConfiguration(history_length=-1),
    )
    with pytest.raises(InvalidParamsError, match=r"(?i)history.?length"):
        await remote.service.send_message(request, remote.context)
