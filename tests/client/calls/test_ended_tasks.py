"""A stream breaks, and its task ends meanwhile: the end comes once, whatever else fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from parley.client import connect
from parley.model.errors import InternalError, InvalidParamsError, UnsupportedOperationError
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext, StreamItem
from parley.model.struct import Timestamp
from parley.model.tasks import Event, Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.scripted import Scripted, app_of, task
from tests.kit.scripted_server import AT_ONCE, Agent, Exchange, talk
from tests.kit.scripted_server import task as plain
from tests.kit.servers import WAYS

pytestmark = pytest.mark.anyio

SAID = Message(message_id="m-2", role=Role.AGENT, parts=(Part(text="done"),))
DONE = Task(
    id="t-1",
    context_id="c-1",
    status=TaskStatus(state=TaskState.COMPLETED, message=SAID),
    history=(SAID,),  # as the official Python server keeps it
)


async def refused(request: Any, context: CallContext) -> AsyncIterator[StreamItem]:
    raise InvalidParamsError("Task t-1 is in terminal state: completed")
    yield


async def broken(request: Any, context: CallContext) -> AsyncIterator[StreamItem]:
    raise InternalError("a bug")
    yield


async def empty(request: Any, context: CallContext) -> AsyncIterator[StreamItem]:
    return
    yield


async def unfinished(request: Any, context: CallContext) -> AsyncIterator[StreamItem]:
    yield StreamItem(task())


RESUMPTIONS = [refused, broken, empty, unfinished]


def states(events: list[Event]) -> list[str]:
    seen = [event for event in events if isinstance(event, Task | TaskStatusUpdateEvent)]
    return [event.status.state.name for event in seen]


@pytest.mark.parametrize("resumption", RESUMPTIONS)
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
async def test_an_end_that_no_stream_shows_is_delivered_once(
    way: tuple[str, str], resumption: Callable[..., Any]
) -> None:
    looks: list[Task] = []

    async def get(request: Any, context: CallContext) -> Task:
        looks.append(task())
        return DONE if len(looks) > 1 else task()

    async def send(request: Any, context: CallContext) -> Task:
        return task()

    script = {
        "send_streaming_message": unfinished,
        "subscribe_to_task": resumption,
        "get_task": get,
        "send_message": send,
    }
    binding, version = way
    service = Scripted(**script)
    options = {"binding": binding, "version": version, "retries": AT_ONCE}
    async with (
        serving(app_of(service), grpc=GrpcOptions(port=0)) as url,
        connect(url, **options) as remote,
        asyncio.timeout(10),
    ):
        events = [event async for event in remote.stream("go")]
        assert states(events) == ["WORKING", "COMPLETED"]
        asked = [each.method for each in service.asked]
        assert asked[:3] == ["send_streaming_message", "get_task", "subscribe_to_task"]
        for wait in (remote.wait("t-1"), remote.send("go")):
            looks.clear()
            assert (await wait).state is TaskState.COMPLETED


async def cut_off(exchange: Exchange) -> None:
    """Answer with a stream that breaks off, as official Python servers do for an ended task."""
    await exchange.open_stream()
    exchange.hang_up()


def status(code: int) -> Callable[[Exchange], Any]:
    async def answer(exchange: Exchange) -> None:
        await exchange.body_of(b"<html>", code, content_type="text/html")

    return answer


@pytest.mark.parametrize("failure", [cut_off, status(500), status(404), status(502)])
async def test_a_task_is_asked_for_before_it_is_subscribed_to_again(
    failure: Callable[[Exchange], Any],
) -> None:
    async def begins(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.chunk(exchange.frame({"task": plain("WORKING")}))
        exchange.hang_up()

    agent = Agent(begins, plain("WORKING"), failure, plain("COMPLETED"))
    async with talk(agent) as (remote, server), asyncio.timeout(10):
        events = [event async for event in remote.stream("go")]
        assert states(events) == ["WORKING", "COMPLETED"]
        assert server.calls[:4] == [
            "SendStreamingMessage", "GetTask", "SubscribeToTask", "GetTask",
        ]  # fmt: skip


async def test_a_subscription_to_an_ended_task_that_breaks_off_is_refused() -> None:
    async with talk(Agent(cut_off, plain("COMPLETED"))) as (remote, server):
        async with asyncio.timeout(10):
            with pytest.raises(UnsupportedOperationError, match="has ended"):
                await anext(remote.subscribe("t-1"))
        assert server.calls == ["SubscribeToTask", "GetTask"]


async def test_a_task_whose_subscription_never_works_is_polled_to_its_end() -> None:
    async def subscribe(exchange: Exchange) -> None:
        call = exchange.call["method"]
        if call == "GetTask":
            looks.append(plain("WORKING", history=[said(f"step {len(looks)}")]))
            await exchange.result(looks[-1] if len(looks) < 30 else plain("COMPLETED"))
        elif call == "SendStreamingMessage":
            await exchange.stream(exchange.frame({"task": plain("WORKING")}))
        else:
            await cut_off(exchange)

    looks: list[Any] = []
    async with talk(Agent(subscribe)) as (remote, server), asyncio.timeout(10):
        assert states([event async for event in remote.stream("go")])[-1] == "COMPLETED"
        assert server.calls.count("SubscribeToTask") == 1


def said(text: str) -> dict[str, Any]:
    return {"messageId": text, "role": "ROLE_AGENT", "parts": [{"text": text}]}


@pytest.mark.parametrize(
    ("state", "mark"),
    [
        ("COMPLETED", b"[DONE]"),
        ("COMPLETED", b"bye"),
        ("INPUT_REQUIRED", b"[DONE]"),
        ("INPUT_REQUIRED", b"bye"),
        ("WORKING", b"[DONE]"),
    ],
)
async def test_a_mark_behind_the_last_event_is_no_error(state: str, mark: bytes) -> None:
    async def streamed(exchange: Exchange) -> None:
        frame = exchange.frame({"task": plain(state)})
        await exchange.stream(frame + b"data: " + mark + b"\n\n")

    async with talk(Agent(streamed, plain("COMPLETED"))) as (remote, _), asyncio.timeout(10):
        events = [event async for event in remote.stream("go")]
    assert states(events) == [state, *["COMPLETED"] * (state == "WORKING")]


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
async def test_an_unknown_state_is_told_and_not_polled_for_ever(
    way: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def get(request: Any, context: CallContext) -> Task:
        looks.append(request)
        # Some agents give each answer the time at which they wrote it.
        now = Timestamp.parse(f"2026-01-31T12:00:{len(looks)}Z")
        status = TaskStatus(state=TaskState.UNSPECIFIED, timestamp=now)
        return Task(id="t-1", context_id="c-1", status=status)

    looks: list[Any] = [None] * 10
    binding, version = way
    service = Scripted(subscribe_to_task=refused, get_task=get)
    options = {"binding": binding, "version": version, "retries": AT_ONCE}
    async with (
        serving(app_of(service), grpc=GrpcOptions(port=0)) as url,
        connect(url, **options) as remote,
        asyncio.timeout(10),
    ):
        assert (await remote.wait("t-1", poll=0.01)).state is TaskState.UNSPECIFIED
    assert len(looks) == 10 + 13
    assert "'t-1' is in a state that is unknown here" in caplog.text
