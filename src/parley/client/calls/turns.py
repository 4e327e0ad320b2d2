"""What comes of a message, until its turn ends: streamed, or looked at again and again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import msgspec

from parley.client.calls.question import task_before
from parley.client.calls.stream import StreamReader, follow, poll
from parley.client.retry import Retry
from parley.model.parts import Message
from parley.model.requests import SendMessageConfiguration, SendMessageRequest
from parley.model.service import A2AService, CallContext
from parley.model.tasks import Event


async def turn(
    service: A2AService,
    context: CallContext,
    make: Callable[[], Awaitable[SendMessageRequest]],
    reader: StreamReader,
    *,
    streams: bool,
    repeatable: bool,
    retry: Retry,
) -> AsyncGenerator[Event, None]:
    """Send what ``make`` makes and yield what comes of it.

    ``streams``: the agent does. ``repeatable``: it answers a repeated message once.
    """
    request = await make()
    message, before = request.message, None
    if message.task_id and not (streams and reader.numbered):
        # Numbered streams begin with the task, and go on where they were cut. From others only the
        # task of before tells what is this turn's, whatever its stream begins with.
        before = await task_before(service, context, message.task_id)
    reader.send(message, before)
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
    # A task that is continued may not have begun its turn when it is returned at once.
    if not request.message.task_id:
        asked = request.configuration or SendMessageConfiguration()
        at_once = msgspec.structs.replace(asked, return_immediately=True)
        request = msgspec.structs.replace(request, configuration=at_once)
    answer = await service.send_message(request, context)
    if isinstance(answer, Message):
        yield reader.tell(answer)
        return
    if reader.before is None:
        reader.believe()
    for event in reader.look(answer):
        yield reader.tell(event)
    if not reader.is_settled:
        async with aclosing(poll(service, context, reader, retry)) as events:
            async for event in events:
                yield event
