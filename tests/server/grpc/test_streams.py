"""Streams over gRPC: their events, their end, and readers that go away or are slow."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from parley.extensions.resumable_streams import number_of
from parley.model.cards import AgentExtension
from parley.model.errors import InternalError, OverloadedError, TaskNotFoundError
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.operations import GetTaskRequest
from parley.model.parts import Artifact, Part
from parley.model.service import StreamItem
from parley.model.tasks import TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent
from parley.server.app import Settings
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.wire import versions
from tests.kit.grpc import Rpc, refusal, rpc_to
from tests.kit.scripted import Scripted, Standstill, app_of, card_of, chunk, reply, task

pytestmark = pytest.mark.anyio

GET = GetTaskRequest(id="t-1")


@pytest.fixture(scope="module")
async def open_server():
    service = Scripted()
    card = card_of(extensions=(AgentExtension(uri=RESUMABLE_STREAMS),))
    async with rpc_to(app_of(service, card=card)) as rpc:
        yield service, rpc


@pytest.fixture
def service(open_server):
    open_server[0].forget()
    return open_server[0]


@pytest.fixture
def rpc(open_server, service):
    return open_server[1]


@pytest.fixture(params=versions.SUPPORTED_VERSIONS)
def either(request, rpc):
    """A channel on which either version is spoken."""
    return Rpc(rpc.channel, request.param)


def streaming(*items: StreamItem, error: Exception | None = None):
    async def stream(request, context):
        for item in items:
            yield item
        if error is not None:
            raise error

    return stream


@pytest.mark.parametrize("name", ["SubscribeToTask", "SendStreamingMessage"])
async def test_events_come_in_order_and_then_the_end(either, name):
    async with either.stream(name) as stream:
        assert await stream.rest() == [task(), chunk("one"), chunk("two")]
        assert await stream.call.code() is grpc.StatusCode.OK


async def test_a_direct_reply_is_the_only_event(either, service):
    service.script["send_streaming_message"] = streaming(StreamItem(reply()))
    async with either.stream("SendStreamingMessage") as stream:
        assert await stream.rest() == [reply()]


async def test_a_final_event_ends_a_stream_of_0_3_and_none_of_1_0(either, service):
    final = TaskStatusUpdateEvent(
        task_id="t-1", context_id="c-1", status=TaskStatus(state=TaskState.COMPLETED)
    )
    service.script["subscribe_to_task"] = streaming(StreamItem(final, 1), StreamItem(task(), 2))
    async with either.stream() as stream:
        events = await stream.rest()
    assert events[0] == final
    assert len(events) == (2 if either.metadata[0][1] == "1.0" else 1)


async def test_events_carry_their_numbers_for_those_who_ask(either, service):
    service.script["subscribe_to_task"] = streaming(
        StreamItem(task(), 4), StreamItem(chunk("a"), 5), StreamItem(chunk("b"))
    )
    async with either.stream() as stream:
        assert [number_of(event) for event in await stream.rest()] == [None] * 3
    asked = (*either.metadata, ("a2a-extensions", RESUMABLE_STREAMS))
    async with either.stream(metadata=asked) as stream:
        assert [number_of(event) for event in await stream.rest()] == [4, 5, None]


async def test_an_error_before_the_first_event_is_the_status(either, service):
    service.script["subscribe_to_task"] = streaming(error=TaskNotFoundError("no task t-1"))
    async with either.stream() as stream:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.next()
    assert isinstance(refusal(refused.value).error, TaskNotFoundError)


async def test_an_error_after_events_is_the_status_at_the_end(either, service):
    failing = streaming(StreamItem(task(), 1), error=ValueError("secret"))
    service.script["subscribe_to_task"] = failing
    async with either.stream() as stream:
        assert await stream.next() == task()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.next()
    refused = refusal(refused.value)
    assert isinstance(refused.error, InternalError)
    assert "secret" not in refused.words


async def test_a_client_that_goes_away_closes_what_it_waited_for(rpc, service):
    still = service.script["subscribe_to_task"] = Standstill(StreamItem(task(), 1))
    async with rpc.stream() as stream:
        await stream.next()
        assert still.open == 1
    await asyncio.wait_for(still.closed.wait(), 5)


async def test_a_deadline_ends_a_stream_and_closes_what_it_waited_for(rpc, service):
    still = service.script["subscribe_to_task"] = Standstill(StreamItem(task(), 1))
    call = rpc.start("SubscribeToTask", GET_SUBSCRIPTION, None, timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in call:
            pass
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(still.closed.wait(), 5)


GET_SUBSCRIPTION = b"\x12\x03t-1"


async def test_a_call_that_is_cancelled_cancels_what_it_waits_for(rpc, service):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(request, context):
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    service.script["get_task"] = wait
    call = rpc.start("GetTask", GET, None)
    await asyncio.wait_for(begun.wait(), 5)
    call.cancel()
    await asyncio.wait_for(ended.wait(), 5)
    service.script["get_task"] = lambda request, context: _task()
    assert await rpc.ask("GetTask", GET) == task()


async def _task():
    return task()


async def test_streams_are_bounded_in_number_over_all_bindings():
    still = Standstill(StreamItem(task(), 1))
    service = Scripted(subscribe_to_task=still)
    async with rpc_to(app_of(service, settings=Settings(max_streams=1))) as rpc:
        async with rpc.stream() as stream:
            await stream.next()
            refused = await rpc.refused("SubscribeToTask", GET_SUBSCRIPTION)
            assert isinstance(refused.error, OverloadedError)
        await asyncio.wait_for(still.closed.wait(), 5)
        service.forget()
        async with rpc.stream() as stream:
            assert len(await stream.rest()) == 3


async def test_a_reader_that_does_not_read_holds_its_writer_up():
    made = 0
    big = TaskArtifactUpdateEvent(
        task_id="t-1",
        context_id="c-1",
        artifact=Artifact(artifact_id="a", parts=(Part(text="x" * 200_000),)),
    )
    standing = asyncio.Event()

    async def pour(request, context):
        nonlocal made
        while True:
            made += 1
            asyncio.get_running_loop().call_later(0.3, _note, made)
            yield StreamItem(big, made)

    def _note(then: int) -> None:
        if then == made:
            standing.set()

    app = app_of(Scripted(subscribe_to_task=pour))
    # A client that does not take ever more ahead of its reader.
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        target = app.grpc.beside(url)
        async with (
            grpc.aio.insecure_channel(target, options=options) as channel,
            Rpc(channel).stream() as stream,
        ):
            await stream.next()
            await asyncio.wait_for(standing.wait(), 10)
            assert made < 50  # 10 MB


@pytest.mark.parametrize("first", [(), (StreamItem(task(), 1),)], ids=["before", "after"])
async def test_draining_ends_streams_cleanly_once_they_have_begun(first):
    still = Standstill(*first)
    app = app_of(Scripted(subscribe_to_task=still))
    begun = asyncio.Event()
    subscribe = still.__call__

    async def noted(request, context):
        begun.set()
        async for item in subscribe(request, context):
            yield item

    app = app_of(Scripted(subscribe_to_task=noted))
    async with rpc_to(app) as rpc, rpc.stream() as stream:
        await asyncio.wait_for(begun.wait(), 5)
        if first:
            await stream.next()
        app.lifecycle.drain()
        if first:
            assert await stream.rest() == []
        else:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stream.next()
            error = refusal(refused.value).error
            assert isinstance(error, OverloadedError)
            assert error.retry_after == 1
        await asyncio.wait_for(still.closed.wait(), 5)
        refused = await rpc.refused("SendMessage")
        assert isinstance(refused.error, OverloadedError)
        assert await rpc.ask("GetTask", GET) == task()


@pytest.mark.parametrize("said", [1, 2])
async def test_draining_leaves_nobody_with_the_question_that_was_answered(said):
    events = [StreamItem(task(TaskState.INPUT_REQUIRED), 4), StreamItem(chunk("So"), 5)][:said]
    app = app_of(Scripted(send_streaming_message=Standstill(*events)))
    async with rpc_to(app) as rpc, rpc.stream("SendStreamingMessage") as stream:
        for _ in events:
            await stream.next()
        app.lifecycle.drain()
        if said == 2:
            assert await stream.rest() == []
        else:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stream.next()
            assert isinstance(refusal(refused.value).error, OverloadedError)
