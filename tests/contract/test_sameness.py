"""Every way returns the same data, also at the limits of sizes and characters."""

from __future__ import annotations

import asyncio
import base64
import json
from itertools import product

import pytest

from parley import Message, Part, Role, Task, TaskPushNotificationConfig, TaskState
from parley.model.errors import InvalidParamsError
from parley.model.ids import LONGEST_ID
from parley.model.operations import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from tests.contract.agents import release
from tests.contract.conftest import STORES, Speech, past_the_card, reach, ways_over
from tests.contract.saying import PARTS, as_told
from tests.contract.test_errors import refused
from tests.kit.servers import WAYS

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
async def plainest(server):
    """The contract agent over JSON-RPC 1.0, the form closest to the data model."""
    async with reach(server.contract, Speech("JSONRPC", "1.0")) as agent:
        yield agent


async def test_a_task_reads_the_same_in_every_way(remote, plainest, speech):
    said = Message(message_id="m-1", role=Role.USER, parts=PARTS, metadata={"skill": "whole"})
    task = (await plainest.send(said)).task
    assert task.history[0].parts == PARTS
    assert await remote.get(task.id) == as_told(speech, task)


async def test_what_is_said_in_any_way_is_kept_the_same(remote, plainest, speech):
    said = Message(
        message_id="m-1",
        role=Role.USER,
        parts=PARTS,
        metadata={"skill": "ask", "deep": {"list": [1, None, {"a": 2.5}]}},
        extensions=("urn:example:x:v1",),
    )
    task = await remote.send(said)
    kept = (await plainest.get(task.id)).history[0]
    assert kept.parts == as_told(speech, said).parts
    assert kept.metadata == said.metadata
    assert kept.extensions == said.extensions
    assert (kept.message_id, kept.role) == ("m-1", Role.USER)


async def test_a_stream_says_the_same_in_every_way(remote, plainest, speech):
    task = await plainest.send("show please", return_immediately=True)
    here, there = remote.subscribe(task.id), plainest.subscribe(task.id)
    async with asyncio.timeout(10):
        for stream in (here, there):
            assert isinstance(await anext(stream), Task)
        release(task)
        collecting = [asyncio.create_task(collected(stream)) for stream in (here, there)]
        asked = await plainest.wait(task.id, timeout=10)
        await plainest.send("42", task_id=asked.id)
        told, events = [await task for task in collecting]
    expected = [as_told(speech, event) for event in events]
    if speech.is_old:
        # A status that asks for input ends its stream (0.3 §7.2.2).
        states = [getattr(event, "status", None) and event.status.state for event in events]
        del expected[states.index(TaskState.INPUT_REQUIRED) + 1 :]
    assert told == expected
    assert {type(event).__name__ for event in told} == {
        "TaskStatusUpdateEvent",
        "TaskArtifactUpdateEvent",
    }


async def collected(stream):
    """Return the rest of a stream."""
    return [event async for event in stream]


# -- ids at their limits and arbitrary texts, alike on every store ---------------------------------


WRONG = {
    "too long": "a" * (LONGEST_ID + 1),
    "too long in bytes": "é" * (LONGEST_ID // 2 + 1),
    "far too long": "0123456789abcdef" * 400,
    "not a text everywhere": "a\0b",
}


def message(**members):
    given = {"message_id": "m-1", "role": Role.USER, "parts": (Part(text="work please"),)}
    return SendMessageRequest(message=Message(**{**given, **members}))


def requests(wrong):
    """Each request with the wrong id in each place, and the name of the place."""
    hook = {"url": "https://hooks.example.com"}
    for name in ("SendMessage", "SendStreamingMessage"):
        yield name, message(message_id=wrong), "message.messageId"
        yield name, message(context_id=wrong), "message.contextId"
        yield name, message(task_id=wrong), "message.taskId"
        yield name, message(reference_task_ids=("t", wrong)), "message.referenceTaskIds[1]"
    yield "GetTask", GetTaskRequest(id=wrong), "id"
    yield "CancelTask", CancelTaskRequest(id=wrong), "id"
    yield "SubscribeToTask", SubscribeToTaskRequest(id=wrong), "id"
    yield "ListTasks", ListTasksRequest(context_id=wrong), "contextId"
    for name, request in (
        ("CreateTaskPushNotificationConfig", TaskPushNotificationConfig),
        ("GetTaskPushNotificationConfig", GetTaskPushNotificationConfigRequest),
        ("DeleteTaskPushNotificationConfig", DeleteTaskPushNotificationConfigRequest),
    ):
        more = hook if request is TaskPushNotificationConfig else {}
        yield name, request(task_id=wrong, id="c", **more), "taskId"
        yield name, request(task_id="t", id=wrong, **more), "id"
    name = "ListTaskPushNotificationConfigs"
    yield name, ListTaskPushNotificationConfigsRequest(task_id=wrong), "taskId"


@pytest.mark.parametrize("kind", WRONG)
async def test_an_id_that_cannot_be_kept_is_refused_by_its_name(remote, speech, kind):
    for name, request, field in requests(WRONG[kind]):
        if speech.is_old and name == "ListTasks":
            continue  # the request has no such field
        if "reference" in field and speech.is_old and speech.binding != "JSONRPC":
            continue  # nor do these
        caught = await refused(remote, name, request)
        assert type(caught) is InvalidParamsError, (name, field, caught)
        assert field in caught.message
        assert str(LONGEST_ID) in caught.message
        assert caught.retry_after is None


async def test_the_longest_ids_are_kept(remote, speech):
    ids = {"message_id": "m" * LONGEST_ID, "context_id": "é" * (LONGEST_ID // 2)}
    task = await past_the_card(remote, "SendMessage", message(**ids))
    assert task.state is TaskState.COMPLETED
    assert task.context_id == ids["context_id"]
    assert task.history[0].message_id == ids["message_id"]
    if not speech.is_old:
        listed = await remote.list(context_id=ids["context_id"])
        assert task.id in [each.id for each in listed.tasks]


ODD = {
    "U+0000": "a\0b",
    "all of ASCII": "".join(map(chr, range(128))),
    "the ends of planes": "\ufffe\uffff\U0001ffff\U0010ffff\ue000",
    "lines": "\x85\u2028\u2029\r\n",
    "no letters": "\ufeff\u202e\u0301",
    "much": "\0é\U0001f600" * 10_000,
}


@pytest.mark.parametrize("kind", ODD)
async def test_a_text_may_hold_anything(remote, kind):
    """In the log, the history, private memory, a list and a stream."""
    odd = ODD[kind]
    deep: object = odd
    for _ in range(40):
        deep = [deep]
    sent = Message(
        message_id="m-1",
        role=Role.USER,
        parts=(Part(text="whole please"), Part(text=odd), Part(data={odd[:100]: [odd, deep]})),
        metadata={odd[:100]: {"deep": deep}},
    )
    events = [event async for event in remote.stream(sent)]
    task = await remote.get(events[0].id)
    assert task.state is TaskState.COMPLETED
    kept = task.history[0]
    assert kept.parts[1].text == odd
    assert kept.parts[2].data == {odd[:100]: [odd, deep]}
    assert kept.metadata == {odd[:100]: {"deep": deep}}
    asked = await remote.send(f"ask {odd}")
    assert asked.history[0].text == f"ask {odd}"
    done = await remote.send(odd, task_id=asked.id)
    assert done.state is TaskState.COMPLETED
    assert done.artifacts[0].parts == (Part(text=f"size {odd}"),)
    assert await remote.get(done.id) == done


async def test_a_page_token_that_nobody_gave_is_refused(remote, speech):
    if speech.is_old:
        return
    token = base64.urlsafe_b64encode(json.dumps([1, "a\0b", 2]).encode()).decode()
    caught = await refused(remote, "ListTasks", ListTasksRequest(page_token=token))
    assert type(caught) is InvalidParamsError
    assert "pageToken" in caught.message


# -- which ways run over which store ---------------------------------------------------------------


def test_all_ways_meet_all_stores() -> None:
    met = {
        (way, store)
        for question in range(100)
        for store in range(1, len(STORES))
        for way in ways_over(f"test_{question}", store)
    }
    assert met == set(product(WAYS, range(1, len(STORES))))


def test_every_question_meets_every_store_in_both_versions() -> None:
    for store in range(1, len(STORES)):
        assert {version for _, version in ways_over("test_one", store)} == {"1.0", "0.3"}
