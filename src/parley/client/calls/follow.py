"""Streams that survive broken connections: every event once and in order.

A broken stream is resumed after its last event if the agent numbers events; otherwise the task is
polled (``poll``). ``turn_events`` and ``RemoteAgent`` call ``follow``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from parley.client.calls.stream_reader import MAX_POLLS, StreamReader, is_settled, snapshot_before
from parley.client.errors import ClientError, ConnectionClosed, Disconnected, StreamCut, Unreachable
from parley.client.retry import LONGEST_WAIT, Retry, is_worth_repeating
from parley.model.errors import A2AError, TaskNotFoundError, UnsupportedOperationError
from parley.model.operations import (
    GetTaskRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.parts import Message
from parley.model.service import A2AService, CallContext, StreamItem
from parley.model.tasks import Event, Task, TaskState, TaskStatusUpdateEvent

# -- poll -------------------------------------------------------------------------------------

MAX_UNCHANGED_POLLS = 12


class StallDetector:
    """Detects a task that stays in an unknown state, and so might never end.

    Some agents have states of their own. Such a state counts as final if it does not change.
    """

    def __init__(self) -> None:
        self._before: Task | None = None
        self._unchanged = 0

    def is_stalled(self, task: Task) -> bool:
        """Return whether the task is in an unknown state that did not change for several polls."""
        # Some agents set the timestamp of each answer to the time of the answer.
        task = replace(task, status=replace(task.status, timestamp=None))
        self._unchanged = self._unchanged + 1 if task == self._before else 0
        self._before = task
        if task.state is not TaskState.UNSPECIFIED:
            return False
        if not self._unchanged:
            logger.warning(
                "task %.100r is in an unknown state; after %d polls without a change "
                "it is treated as final",
                task.id,
                MAX_UNCHANGED_POLLS,
            )
        return self._unchanged >= MAX_UNCHANGED_POLLS


async def poll(
    service: A2AService, context: CallContext, reader: StreamReader, retry: Retry
) -> AsyncGenerator[Event, None]:
    """Yield the events of the reader's task, derived from successive snapshots.

    Pauses grow while nothing changes. Ends when the task ends or waits for its caller, but
    continues while the task only waits for the turn of the reader's message to begin.
    """
    request = GetTaskRequest(id=reader.task_id)
    quiet = 0
    stall = StallDetector()
    while True:
        task = await service.get_task(request, context)
        events = reader.apply_snapshot(task)
        quiet = 0 if events else quiet + 1
        for event in events:
            yield reader.deliver(event)
        if reader.is_settled:
            return
        if is_settled(task.state) and not reader.shows_prior_question(task, polls=quiet):
            ids: dict[str, Any] = {"task_id": task.id, "context_id": task.context_id}
            yield reader.deliver(TaskStatusUpdateEvent(**ids, status=task.status))
            return
        if stall.is_stalled(task):
            return
        await asyncio.sleep(retry.pause(quiet))


# -- follow -----------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

Source = Callable[[], AsyncIterator[StreamItem]]

# Seconds to wait for the end of the body after the last event, so that the connection is reusable.
END_TIMEOUT = 1.0
# After this many seconds a lost connection does not count as a consecutive failure.
STABLE_AFTER = 5.0


async def _asks_again(
    service: A2AService, context: CallContext, reader: StreamReader, retry: Retry
) -> bool:
    """Return whether the reader's message began a turn that ended with a question."""
    for polls in range(MAX_POLLS):
        task = await service.get_task(GetTaskRequest(id=reader.task_id), context)
        if not (reader.has_message(task) and reader.shows_prior_question(task)):
            return False
        await asyncio.sleep(retry.pause(polls))
    return True


async def follow(
    service: A2AService,
    context: CallContext,
    reader: StreamReader,
    source: Source,
    *,
    retry: Retry,
    repeatable: bool,
    ends_with_turn: bool,
) -> AsyncGenerator[Event, None]:
    """Yield the events of ``source``, and resume after an interruption.

    ``source`` is called again only before its first event, and only if it is ``repeatable`` or did
    not reach the server. ``ends_with_turn``: the stream of a message ends when the agent needs
    input; a subscription continues until the task ends or the server closes it.

    Raises ``StreamCut`` when ``retry`` is used up, and ``A2AError`` when the agent rejects the
    request.
    """
    resumed = reached = polling = fruitless = False
    failures = quiet = 0
    clock = asyncio.get_running_loop().time
    cut: Exception | None = None
    while True:
        began = clock()
        closed, cut = cut is None, None
        subscribing = resumed and not polling
        came = False
        try:
            if subscribing and reader.seq is None:
                # Only the task shows the missed events. Some servers answer a subscription to an
                # ended task with a broken stream.
                subscribing = False
                task = await service.get_task(GetTaskRequest(id=reader.task_id), context)
                if task.state.is_terminal and not reader.has_begun:
                    raise _ended(reader)
                # A server that ends a stream in a non-standard state sends no more events.
                if closed and reader.state is task.state is TaskState.UNSPECIFIED:
                    return
                waits = is_settled(task.state) and not reader.shows_prior_question(task)
                polling = fruitless or waits
                subscribing = not polling
            elif (
                subscribing
                and closed
                and reader.is_prior_state
                and await _asks_again(service, context, reader, retry)
            ):  # the stream has begun, and ended with a question that followed the message
                reader.accept_any_state()
                return
            if polling:
                async with aclosing(poll(service, context, reader, retry)) as polled:
                    async for event in polled:
                        failures = quiet = 0
                        yield event
                return
            async with aclosing(cast("AsyncGenerator[StreamItem, None]", source())) as items:
                opening = True
                while True:
                    if _is_over(reader, ends_with_turn, closed=False):
                        item = await _next(items, within=END_TIMEOUT)
                    else:
                        item = await anext(items, None)
                    if item is None:
                        break
                    if opening and resumed and not _has_position(item):
                        # The agent resumes without a position. A snapshot includes this event and
                        # maybe later ones, so the rest of this stream must not be read.
                        polling = True
                        break
                    if opening and not ends_with_turn and not _has_position(item):
                        # A subscription that does not begin with the task: a snapshot includes this
                        # event. The stream of a message may begin with any event.
                        request = GetTaskRequest(id=reader.task_id)
                        events = reader.apply_snapshot(await service.get_task(request, context))
                    else:
                        events = reader.apply_item(
                            item, resumed=resumed and opening, opening=opening
                        )
                    for event in events:
                        failures = quiet = 0
                        came = True
                        yield reader.deliver(event)
                    opening = False
        except (ClientError, A2AError) as error:
            is_refusal = ends_with_turn and isinstance(error, UnsupportedOperationError)
            if _is_over(reader, ends_with_turn, closed=False) and (resumed or not is_refusal):
                return  # events after the end do not belong to the task
            if isinstance(error, ConnectionClosed):
                raise
            if is_worth_repeating(error, safe=True):
                cut = error
            elif polling or (ends_with_turn and not resumed):
                # The error concerns the task itself, or the message because its task has ended
                # meanwhile.
                raise
            elif reader.has_begun:
                # An ended task is not streamed (§3.1.6), some agents stream no task twice, and the
                # missed events may be gone. The task itself shows its state, or no longer exists.
                polling = True
            elif isinstance(error, UnsupportedOperationError):
                raise
            else:
                task = await service.get_task(GetTaskRequest(id=reader.task_id), context)
                if task.state.is_terminal:
                    raise _ended(reader) from error
                # The official Go SDK streams only working tasks, and reports others as not found.
                if not isinstance(error, TaskNotFoundError):
                    raise
                polling = True
        if polling and cut is None:
            continue
        if _is_over(reader, ends_with_turn, closed=cut is None):
            return
        reached = reached or not isinstance(cut, Unreachable)
        may_repeat = repeatable or isinstance(cut, Unreachable)
        if not (reader.task_id or may_repeat) and await _is_received(service, context, reader):
            reader.resume_before()
        if reader.task_id:
            resumed = True
            source = _subscription(service, context, reader)
        elif not may_repeat:
            if cut is not None and not isinstance(cut, Disconnected):
                raise cut
            raise StreamCut(
                f"the stream ended before its first event ({cut or 'the server closed it'}); "
                "it is unknown whether the agent has the message"
            ) from cut
        was_stable = isinstance(cut, Disconnected | None) and clock() - began > STABLE_AFTER
        # An agent that has the task but no stream of it is polled.
        fruitless = subscribing and not (came or was_stable)
        failures = 1 if was_stable else failures + 1
        may_look = cut is None and reader.task_id and reader.seq is None
        if failures > (retry.streams if reached else retry.calls) and not may_look:
            if isinstance(cut, Unreachable) and not (reached and reader.task_id):
                raise cut
            reason = cut or "it ends without an event"
            raise StreamCut(
                f"the stream of task {reader.task_id or '(not yet known)'} broke off and could "
                f"not be resumed in {failures - 1} attempts: {reason}",
                task_id=reader.task_id,
                seq=reader.seq,
            ) from cut
        pause = _backoff(retry, quiet, cut)
        quiet += 1
        logger.info("the stream was cut (%s); resuming in %.2f s", cut or "early end", pause)
        if reader.on_cut is not None:
            reader.on_cut()
        await asyncio.sleep(pause)


def _ended(reader: StreamReader) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        "the task has ended, so there is nothing to subscribe to; get it instead",
        metadata={"taskId": reader.task_id},
    )


async def _is_received(service: A2AService, context: CallContext, reader: StreamReader) -> bool:
    """Return whether the agent certainly has the reader's message, because the history shows it.

    Only a message that continues a task can be found, and not all agents keep a history.
    """
    if reader.before is None:
        return False
    try:
        task = await service.get_task(GetTaskRequest(id=reader.before.id), context)
    except (ClientError, A2AError):
        return False
    return reader.has_message(task)


async def _next(items: AsyncGenerator[StreamItem, None], *, within: float) -> StreamItem | None:
    try:
        async with asyncio.timeout(within):
            return await anext(items, None)
    except TimeoutError:
        return None


def _has_position(item: StreamItem) -> bool:
    """Return whether the event itself shows its position in the task."""
    return item.seq is not None or isinstance(item.event, Task | Message)


def _is_over(reader: StreamReader, ends_with_turn: bool, *, closed: bool) -> bool:
    """Return whether no more events will follow. ``closed``: the server ended the stream itself.

    A stream may end, or stay open, while the task waits for its caller: the specification allows
    both readings (§3.1.2, §3.1.6, §11.7). An agent that numbers events keeps a subscription open as
    long as the protocol version permits, so a stream that ends earlier is resumed, perhaps on
    another of its servers.
    """
    if reader.message is not None:
        return True
    if reader.state is None or reader.is_prior_state:
        return False
    needs_input = reader.state is TaskState.INPUT_REQUIRED
    if reader.state.is_terminal or (ends_with_turn and needs_input):
        return True
    stays_open = reader.numbered and reader.seq is not None and not reader.is_final
    to_resume = stays_open and not ends_with_turn
    return closed and reader.state.is_interrupted and not to_resume


def _subscription(service: A2AService, context: CallContext, reader: StreamReader) -> Source:
    after = None if reader.seq is None else str(reader.seq)
    request = SubscribeToTaskRequest(id=reader.task_id)
    resumed = msgspec.structs.replace(context, last_event_id=after)
    return lambda: service.subscribe_to_task(request, resumed)


def _backoff(retry: Retry, nth: int, cut: Exception | None) -> float:
    wished: float | None = getattr(cut, "retry_after", None)
    return retry.pause(nth) if wished is None else min(wished, LONGEST_WAIT)


# -- turn events ------------------------------------------------------------------------------


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

    ``streams``: the agent streams. ``repeatable``: it answers a repeated message only once.
    """
    request = await compose()
    message, before = request.message, None
    if message.task_id and not (streams and reader.numbered):
        # A numbered stream begins with the task and resumes exactly. For other streams only the
        # snapshot shows which output belongs to this turn, whatever event the stream begins with.
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
    # A continued task that is returned immediately may not have begun its turn.
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
