"""What comes of a message, until its turn ends: streamed, or looked at again and again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import msgspec

from parley.client.retry import Retry
from parley.client.stream import Reader, follow, poll
from parley.model.parts import Message
from parley.model.requests import SendMessageConfiguration, SendMessageRequest
from parley.model.service import A2AService, CallContext
from parley.model.tasks import Event, TaskState


async def turn(
    service: A2AService,
    context: CallContext,
    make: Callable[[], Awaitable[SendMessageRequest]],
    reader: Reader,
    *,
    streams: bool,
    repeatable: bool,
    retry: Retry,
) -> AsyncGenerator[Event, None]:
    """Send what ``make`` makes and yield what comes of it.

    ``streams``: the agent does. ``repeatable``: it answers a repeated message once.
    """
    request = await make()
    reader.continues = bool(request.message.task_id)
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
    reader: Reader,
    retry: Retry,
) -> AsyncGenerator[Event, None]:
    # A task that is continued may not have begun its turn when it is returned at once.
    if not reader.continues:
        asked = request.configuration or SendMessageConfiguration()
        at_once = msgspec.structs.replace(asked, return_immediately=True)
        request = msgspec.structs.replace(request, configuration=at_once)
    answer = await service.send_message(request, context)
    if isinstance(answer, Message):
        yield answer
        return
    for event in reader.look(answer):
        yield event
    if not is_settled(answer.state):
        async with aclosing(poll(service, context, reader, retry)) as events:
            async for event in events:
                yield event


def is_settled(state: TaskState) -> bool:
    """Whether a task has ended, or waits for its caller."""
    return state.is_terminal or state.is_interrupted
