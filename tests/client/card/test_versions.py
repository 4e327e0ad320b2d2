"""Every operation of a connection, in each version and over each binding, with a Parley agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

import parley
from parley import Agent, RemoteAgent, Task, TaskState, Turn, connect
from parley.client.bindings.binding import BINDINGS, is_supported
from parley.client.retry import Retry
from parley.model.errors import (
    A2AError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from parley.model.tasks import TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.services.proxy import line

pytestmark = pytest.mark.anyio

SOON = Retry(calls=3, streams=100, first=0.05, limit=0.25)
"""Long enough for a gRPC channel to reconnect: the channel has its own backoff."""
STOPS = (9, 24)
go_on: asyncio.Queue[None] = asyncio.Queue()
"""Lets a stopped essay continue."""

served = Agent("Served", description="Does a little of everything", version="1.0.0")


@served.skill
async def hello(turn: Turn) -> str:
    """Answers at once."""
    return f"hello, {turn.text}"


@served.skill
async def report(turn: Turn) -> AsyncIterator[str]:
    """Streams."""
    for n in range(3):
        yield f"{n} "


@served.skill
async def essay(turn: Turn) -> AsyncIterator[str]:
    """Streams for longer."""
    for n in range(40):
        yield f"word {n} "
        if n in STOPS:
            await go_on.get()


@served.skill
async def book(turn: Turn) -> str:
    """Asks."""
    where = await turn.ask("Where to?")
    return f"booked: {where.text}"


@served.skill(replies="task")
async def forever(turn: Turn) -> str:
    """Never ends by itself."""
    await asyncio.Event().wait()
    return ""


WAYS = [(binding, version) for version in ("1.0", "0.3") for binding in BINDINGS]


@pytest.fixture(scope="module")
async def address() -> AsyncIterator[str]:
    grpc = GrpcOptions(port=0) if is_supported("GRPC") else None
    async with serving(parley.asgi(served, store="memory:"), grpc=grpc) as address:
        yield address


@pytest.fixture(params=WAYS, ids=lambda way: " ".join(way))
async def remote(request: pytest.FixtureRequest, address: str) -> AsyncIterator[RemoteAgent]:
    binding, version = request.param
    if not is_supported(binding):
        pytest.skip(f"{binding} is not installed")
    async with asyncio.timeout(30):
        async with connect(address, binding=binding, version=version) as agent:
            assert (agent.interface.protocol_binding, agent.version) == (binding, version)
            yield agent


async def test_a_stream_tells_everything_once_and_in_order(remote: RemoteAgent) -> None:
    stream = remote.stream("go", message_metadata={"skill": "report"})
    events = [event async for event in stream]
    assert isinstance(events[0], Task)
    assert isinstance(events[-1], TaskStatusUpdateEvent)
    chunks = [event for event in events if isinstance(event, TaskArtifactUpdateEvent)]
    assert "".join(chunk.artifact.text for chunk in chunks) == "0 1 2 "
    assert stream.state is TaskState.COMPLETED
    task = await remote.get(stream.task_id)
    assert (task.text, task.context_id) == ("0 1 2 ", stream.context_id)
    if (remote.interface.protocol_binding, remote.version) != ("GRPC", "0.3"):
        # gRPC of 0.3 cannot distinguish a length of 0 from no length.
        assert (await remote.get(stream.task_id, history_length=0)).history == ()


async def test_a_question_is_answered_in_its_task(remote: RemoteAgent) -> None:
    asked = await remote.send("go", metadata={"skill": "book"})
    assert asked.id
    assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "Where to?")
    booked = await remote.send("Rome", task=asked)
    assert (booked.state, booked.text) == (TaskState.COMPLETED, "booked: Rome")
    again = remote.stream("go", metadata={"skill": "book"})
    async for _ in again:
        pass
    assert again.state is TaskState.INPUT_REQUIRED
    answer = remote.stream("Oslo", task_id=again.task_id)
    async for _ in answer:
        pass
    assert (answer.task_id, answer.state) == (again.task_id, TaskState.COMPLETED)


async def test_a_task_is_taken_at_once_followed_and_canceled(remote: RemoteAgent) -> None:
    task = await remote.send("go", metadata={"skill": "forever"}, return_immediately=True)
    assert task.id
    assert not task.state.is_terminal
    async with remote.subscribe(task.id) as stream:
        assert isinstance(await anext(stream), Task)
        assert (await remote.cancel(task.id)).state is TaskState.CANCELED
        async for _ in stream:
            pass
        assert stream.state is TaskState.CANCELED
    assert (await remote.wait(task.id)).state is TaskState.CANCELED


async def test_tasks_are_listed_where_the_version_can(remote: RemoteAgent) -> None:
    task, *_ = [event async for event in remote.stream("go", metadata={"skill": "report"})]
    assert task.id
    binding = remote.interface.protocol_binding
    if remote.version == "0.3" and binding != "HTTP+JSON":
        with pytest.raises(UnsupportedOperationError, match=r"version 0\.3 .* ListTasks"):
            await remote.list()
    else:
        page = await remote.list(context_id=task.context_id, page_size=1)
        assert [one.id for one in page.tasks] == [task.id]


async def test_what_the_card_does_not_declare_is_refused_here(remote: RemoteAgent) -> None:
    with pytest.raises(UnsupportedOperationError):
        await remote.extended_card()
    if not remote.card.capabilities.push_notifications:
        with pytest.raises(PushNotificationNotSupportedError):
            await remote.push.page("t-1")
    else:
        with pytest.raises(A2AError):
            await remote.push.get("no-such-task", "p-1")


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize(("binding", "version"), WAYS, ids=lambda value: value)
async def test_a_stream_that_is_cut_loses_nothing(
    address: str, binding: str, version: str, numbered: bool
) -> None:
    if not is_supported(binding):
        pytest.skip(f"{binding} is not installed")
    async with asyncio.timeout(30), connect(address, binding=binding, version=version) as direct:
        card, there = direct.card, direct.interface
    port = urlsplit(there.url if "://" in there.url else f"http://{there.url}").port
    stops = [f"word {n} " for n in STOPS]
    while not go_on.empty():
        go_on.get_nowait()
    async with asyncio.timeout(30), line(port) as between:
        near = replace(there, url=there.url.replace(f":{port}", f":{between.port}"))
        capabilities = card.capabilities
        if not numbered:
            capabilities = replace(capabilities, extensions=())
        near_card = replace(card, supported_interfaces=(near,), capabilities=capabilities)
        async with connect(near_card, retries=SOON) as remote:
            stream = remote.stream("go", metadata={"skill": "essay"})
            text = ""
            async for event in stream:
                if isinstance(event, TaskArtifactUpdateEvent):
                    text = event.artifact.text if not event.append else text + event.artifact.text
                if stops and text.endswith(stops[0]):
                    stops.pop(0)
                    between.cut()
                    go_on.put_nowait(None)
            assert stream.state is TaskState.COMPLETED
            assert (stream.seq is not None) is numbered
    assert text == "".join(f"word {n} " for n in range(40))
    assert between.accepted >= 3
