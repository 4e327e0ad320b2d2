"""The events of one message's turn, streamed or polled. ``RemoteAgent.stream`` is the caller."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import msgspec

from parley.client.calls.follow import follow
from parley.client.calls.poll import poll
from parley.client.calls.prior_question import snapshot_before
from parley.client.calls.stream_reader import StreamReader
from parley.client.retry import Retry
from parley.model.operations import SendMessageConfiguration, SendMessageRequest
from parley.model.parts import Message
from parley.model.service import A2AService, CallContext
from parley.model.tasks import Event


async def turn_events(
    service: A2AService,
    context: CallContext,
    compose: Callable[[], Awaitable[SendMessageRequest]],
    reader: StreamReader,
    *,
    streams: bool,
    repeatable: bool,
    retry: Retry,
) -> AsyncGenerator[Event, None]:
    """Send the request that ``compose`` returns and yield the events of its turn.

    ``streams``: the agent streams. ``repeatable``: it answers a repeated message once.
    """
    request = await compose()
    message, before = request.message, None
    if message.task_id and not (streams and reader.numbered):
        # A numbered stream begins with the task and resumes exactly. For others only the snapshot
        # shows which output is of this turn, whatever event the stream begins with.
        before = await snapshot_before(service, context, message.task_id)
    reader.start(message, before)
    if streams:
        events = follow(
            service,
            context,
            reader,
            lambda: service.send_streaming_message(request, context),
            retry=retry,
            repeatable=repeatable,
            ends_with_turn=True,
        )
    else:
        events = _polled(service, context, request, reader, retry)
    async with aclosing(events):
        async for event in events:
            yield event


async def _polled(
    service: A2AService,
    context: CallContext,
    request: SendMessageRequest,
    reader: StreamReader,
    retry: Retry,
) -> AsyncGenerator[Event, None]:
    # A continued task may not have begun its turn when it is returned immediately.
    if not request.message.task_id:
        configuration = msgspec.structs.replace(
            request.configuration or SendMessageConfiguration(), return_immediately=True
        )
        request = msgspec.structs.replace(request, configuration=configuration)
    answer = await service.send_message(request, context)
    if isinstance(answer, Message):
        yield reader.deliver(answer)
        return
    if reader.before is None:
        reader.accept_any_state()
    for event in reader.apply_snapshot(answer):
        yield reader.deliver(event)
    if not reader.is_settled:
        async with aclosing(poll(service, context, reader, retry)) as events:
            async for event in events:
                yield event
