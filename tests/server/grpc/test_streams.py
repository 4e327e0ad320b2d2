"""Streams over gRPC: events, end, and readers that disconnect or are slow."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from parley.model.cards import AgentExtension
from parley.model.errors import OverloadedError, TaskNotFoundError
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.parts import Artifact, Part
from parley.model.service import StreamItem
from parley.model.tasks import TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent
from parley.server.app import Settings
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.wire import versions
from tests.kit.grpc import Rpc, refusal, rpc_to
from tests.kit.scripted import Scripted, Standstill, app_of, card_of, chunk, task

pytestmark = pytest.mark.anyio


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
    """A channel that supports both versions."""
    return Rpc(rpc.channel, request.param)


def streaming(*items: StreamItem, error: Exception | None = None):
    async def stream(request, context):
        for item in items:
            yield item
        if error is not None:
            raise error

    return stream


async def test_a_final_event_ends_a_stream_of_0_3_and_none_of_1_0(either, service):
    final = TaskStatusUpdateEvent(
        task_id="t-1", context_id="c-1", status=TaskStatus(state=TaskState.COMPLETED)
    )
    service.script["subscribe_to_task"] = streaming(StreamItem(final, 1), StreamItem(task(), 2))
    async with either.stream() as stream:
        events = await stream.rest()
    assert events[0] == final
    assert len(events) == (2 if either.metadata[0][1] == "1.0" else 1)


async def test_an_error_before_the_first_event_is_the_status(either, service):
    service.script["subscribe_to_task"] = streaming(error=TaskNotFoundError("no task t-1"))
    async with either.stream() as stream:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.next()
    assert isinstance(refusal(refused.value).error, TaskNotFoundError)


GET_SUBSCRIPTION = b"\x12\x03t-1"


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


@pytest.mark.slow
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
    # A client with a bounded read-ahead.
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
