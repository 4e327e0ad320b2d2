"""Streams that outlive their connections: every event once, in order, whatever breaks between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, cast

import msgspec

from parley.client.calls.difference import difference
from parley.client.calls.folded_task import FoldedTask
from parley.client.calls.last_words import Looks
from parley.client.calls.question import is_settled, reopens, still_asks
from parley.client.errors import (
    ClientError,
    ConnectionClosed,
    Disconnected,
    StreamCut,
    Unreachable,
)
from parley.client.retry import LONGEST_WAIT, Retry, is_worth_repeating
from parley.model.errors import (
    A2AError,
    InvalidAgentResponseError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from parley.model.parts import Message
from parley.model.requests import GetTaskRequest, SubscribeToTaskRequest
from parley.model.service import A2AService, CallContext, StreamItem
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from parley.store.fold import IllegalEvent

logger = logging.getLogger(__name__)

Source = Callable[[], AsyncIterator[StreamItem]]

# What a server still has to say after the last event is waited for so long: usually the end of
# the body, which keeps the connection usable.
LAST_WORDS = 1.0
# A try that held this long was a good connection; losing it is not another failure in a row.
GOOD_WHILE = 5.0
# Of a task with more artifacts it is no longer checked which chunk belongs to which.
MOST_ARTIFACTS = 10_000


class StreamReader:
    """How far a reader has come in a task.

    Agents that number their events need only the number; for others the task itself is kept, to
    find out what a fresh look at it has that was not seen. ``ends`` tells with which events
    streams end in the version of the protocol that is spoken; ``is_final`` is whether the last one
    was such.

    ``before`` is the task as it stood before the reader's message continued it, where that is
    known. ``is_old``: the last state told is the one from then, such as the question that the
    message answers; the turn has not got to a state of its own.
    """

    def __init__(
        self,
        *,
        numbered: bool,
        ends: Callable[[Event], bool] = lambda event: False,
        task_id: str = "",
        seq: int | None = None,
    ) -> None:
        self.numbered = numbered
        self.is_final = False
        self._ends = ends
        self.before: Task | None = None
        self.is_old = False
        self._continues = False
        self._opened: Task | None = None
        self._message_id = ""
        self.task_id = task_id
        self.context_id = ""
        self.seq = seq
        self.state: TaskState | None = None
        self.has_begun = False
        self.message: Message | None = None
        self._told: FoldedTask | None = None
        # Artifacts by their ids: those begun, where the reader has seen the task, and those whole.
        self._begun: set[str] | None = None
        self._whole: set[str] = set()

    @property
    def is_settled(self) -> bool:
        """Whether the task has ended or waits for its caller, by what was told of this turn."""
        return self.state is not None and is_settled(self.state) and not self.is_old

    def send(self, message: Message, before: Task | None) -> None:
        """Begin to read what comes of ``message``, sent when its task stood as in ``before``."""
        self._message_id = message.message_id
        self._continues = self.is_old = bool(message.task_id)
        self.before = before
        if before is not None:
            self._told = FoldedTask(before)
            self._begun = {artifact.artifact_id for artifact in before.artifacts}

    def is_in(self, task: Task) -> bool:
        """Whether the task's history has the reader's message."""
        return any(message.message_id == self._message_id for message in task.history)

    def go_on(self) -> None:
        """Take the task of the message for the one to go on with, before any event of it came."""
        if self.before is not None:
            self.task_id, self.context_id = self.before.id, self.before.context_id
            self.has_begun = True

    def believe(self) -> None:
        """Take the next state for the turn's own, however the task stood before."""
        self._continues = self.is_old = False

    def take(self, item: StreamItem, *, resumed: bool) -> list[Event]:
        """Return what is new to the reader in ``item``; ``resumed`` if it opens a later stream.

        Raises ``InvalidAgentResponseError`` for a chunk of an artifact that had its last one.
        """
        event = item.event
        if isinstance(event, Message):
            self.message = event
            return [event]
        if not isinstance(event, Task) and not event.task_id:  # the stream is of one task
            context_id = event.context_id or self.context_id
            event = msgspec.structs.replace(event, task_id=self.task_id, context_id=context_id)
        if self.numbered and item.seq is not None:
            if self.seq is not None and item.seq <= self.seq:
                return []
            self.seq = item.seq
        elif resumed and isinstance(event, Task):
            return self.look(event)
        if isinstance(event, TaskArtifactUpdateEvent):
            self._check(event)
        self.is_final = self._ends(event)
        if isinstance(event, Task):
            self._hold(event)
            # Whoever has a place to go on from needs no memory of the task; a numbering agent may
            # be called over a binding that carries no numbers.
            self._told = None if self.seq is not None else FoldedTask(event)
        elif self._told is not None:
            try:
                self._told.add(event)
            except IllegalEvent as error:
                # The reader still gets it; a later look at the task then tells all of it.
                logger.info("task %r sends what cannot be: %s", self.task_id, error)
                self._told = None
        return [event]

    def look(self, task: Task) -> list[Event]:
        """Return what is new to the reader in the task as it stands now."""
        known = self._told.task if self._told is not None and self._told.is_whole else None
        now, asked = task, self.before.status.message if self.before is not None else None
        if known is not None and self.still_asks(task):
            now = msgspec.structs.replace(task, status=known.status)
        told = {asked.message_id} if asked is not None else set()
        news = difference(known, now, after=self._message_id, told=told)
        self._hold(task)
        self._told = FoldedTask(task)
        self.task_id, self.context_id = task.id, task.context_id or self.context_id
        return news

    def _check(self, event: TaskArtifactUpdateEvent) -> None:
        """See whether a chunk fits what came before; the specification (§4.2.2) leaves it open."""
        id = event.artifact.artifact_id
        if not event.append:
            self._whole.discard(id)
        elif id in self._whole:
            raise InvalidAgentResponseError(
                f"a chunk of artifact {id[:100]!r} came after its last chunk",
                metadata={"taskId": event.task_id, "artifactId": id[:100]},
            )
        elif self._begun is not None and id not in self._begun:
            logger.warning(
                "task %.100r: a chunk of artifact %.100r, never begun", event.task_id, id
            )
        if len(self._whole) + len(self._begun or ()) > MOST_ARTIFACTS:
            self._begun, self._whole = None, set()
        if self._begun is not None:
            self._begun.add(id)
        if event.last_chunk:
            self._whole.add(id)

    def still_asks(self, task: Task, *, looks: int = 0) -> bool:
        """Whether the task shows no more than it did before the turn, or as its stream opened."""
        if not self.is_old:
            return False
        return any(still_asks(old, task, looks=looks) for old in (self.before, self._opened))

    def _hold(self, task: Task) -> None:
        """Know a task's artifacts, all of them."""
        self._begun = {artifact.artifact_id for artifact in task.artifacts}
        self._whole = set()

    def tell(self, event: Event) -> Event:
        """Return an event that the reader is given now; what it says is known from then on."""
        self.has_begun = True
        if isinstance(event, Message):
            return event
        opens = self.state is None
        self.task_id = event.id if isinstance(event, Task) else event.task_id
        self.context_id = event.context_id or self.context_id
        if isinstance(event, TaskArtifactUpdateEvent):
            return event
        self.state = event.status.state
        if not self._continues or not isinstance(event, Task):
            self.is_old = False
        elif opens:
            if self.before is None and (self.numbered or self.state.is_interrupted):
                self.before = event
            self.is_old = self.before is not None and reopens(self.before, event)
            self._opened = event
        else:
            self.is_old = self.still_asks(event)
        return event


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
    """Yield the events of ``source``, and when it breaks off go on where it stopped.

    ``source`` may be asked again when nothing has come of it, if it is ``repeatable`` or never
    reached the server. ``ends_with_turn``: the stream of a message, which is over when the agent
    wants input; a subscription goes on until the task ends or the server closes it.

    Raises ``StreamCut`` when ``retry`` is used up, and what the agent refuses as ``A2AError``.
    """
    resumed = met = polls = False
    failures = quiet = 0
    clock = asyncio.get_running_loop().time
    while True:
        began = clock()
        cut: Exception | None = None
        try:
            if polls:
                async with aclosing(poll(service, context, reader, retry)) as events:
                    async for event in events:
                        failures = quiet = 0
                        yield event
                return
            async with aclosing(cast("AsyncGenerator[StreamItem, None]", source())) as items:
                opening = True
                while True:
                    if _is_over(reader, ends_with_turn, closed=False):
                        item = await _next(items, within=LAST_WORDS)
                    else:
                        item = await anext(items, None)
                    if item is None:
                        break
                    if opening and resumed and not _is_placed(item):
                        # The agent goes on without saying where. What is looked at holds this event
                        # and may hold the next ones too, so that they are not to be listened to.
                        polls = True
                        break
                    if opening and not ends_with_turn and not _is_placed(item):
                        # A subscription that does not begin with the task, which holds this event
                        # already. The stream of a message may begin with any event.
                        request = GetTaskRequest(id=reader.task_id)
                        news = reader.look(await service.get_task(request, context))
                    else:
                        news = reader.take(item, resumed=resumed and opening)
                    for event in news:
                        failures = quiet = 0
                        yield reader.tell(event)
                    opening = False
        except (UnsupportedOperationError, TaskNotFoundError) as error:
            # A task that has ended is not streamed (§3.1.6), some agents stream no task twice, and
            # what was missed may no longer be kept. The task itself says how it stands, or is gone.
            # In the first answer to a message, though, it is the message that is refused: others
            # came first, and ended the task.
            if polls or (ends_with_turn and not resumed):
                raise
            if not reader.has_begun:
                if not isinstance(error, TaskNotFoundError):
                    raise
                # The official Go SDK streams only what it is working on, and finds no other task.
                task = await service.get_task(GetTaskRequest(id=reader.task_id), context)
                if task.state.is_terminal:
                    raise _ended(reader) from error
            polls = True
        except (ClientError, A2AError) as error:
            if isinstance(error, ConnectionClosed) or not is_worth_repeating(error, safe=True):
                raise
            cut = error
        if polls and cut is None:
            continue
        if _is_over(reader, ends_with_turn, closed=cut is None):
            return
        if cut is None and reader.task_id and reader.seq is None:
            # Some agents answer with an empty stream where the task has ended.
            try:
                task = await service.get_task(GetTaskRequest(id=reader.task_id), context)
            except ClientError as error:
                cut = error
            else:
                if task.state.is_terminal and not reader.has_begun:
                    raise _ended(reader)
                # A server that ends a stream in a state of its own has said all that it will.
                if reader.state is task.state is TaskState.UNSPECIFIED:
                    return
                if task.state.is_terminal:
                    for event in reader.look(task):
                        yield reader.tell(event)
                    return
                if is_settled(task.state):
                    polls = True
                    continue
        met = met or not isinstance(cut, Unreachable)
        again = repeatable or isinstance(cut, Unreachable)
        if not (reader.task_id or again) and await _is_received(service, context, reader):
            reader.go_on()
        if reader.task_id:
            resumed = True
            source = _subscription(service, context, reader)
        elif not again:
            if cut is not None and not isinstance(cut, Disconnected):
                raise cut
            raise StreamCut(
                f"the stream ended before its first event ({cut or 'the server closed it'}); "
                "whether the agent has the message is not known"
            ) from cut
        held = isinstance(cut, Disconnected | None) and clock() - began > GOOD_WHILE
        failures = 1 if held else failures + 1
        if failures > (retry.streams if met else retry.calls):
            if isinstance(cut, Unreachable) and not (met and reader.task_id):
                raise cut
            raise StreamCut(
                f"the stream of task {reader.task_id or '(not yet known)'} broke off and could "
                f"not be taken up again: {cut or 'it ends without an event'}",
                task_id=reader.task_id,
                seq=reader.seq,
            ) from cut
        pause = _backoff(retry, quiet, cut)
        quiet += 1
        logger.info("the stream was cut (%s); going on in %.2f s", cut or "early end", pause)
        await asyncio.sleep(pause)


def _ended(reader: StreamReader) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        "the task has ended, so there is nothing to subscribe to; get it instead",
        metadata={"taskId": reader.task_id},
    )


async def _is_received(service: A2AService, context: CallContext, reader: StreamReader) -> bool:
    """Whether the agent surely has the reader's message: its task shows it.

    Only a task that was there before can be asked, and not all agents keep messages.
    """
    if reader.before is None:
        return False
    try:
        task = await service.get_task(GetTaskRequest(id=reader.before.id), context)
    except (ClientError, A2AError):
        return False
    return reader.is_in(task)


async def poll(
    service: A2AService, context: CallContext, reader: StreamReader, retry: Retry
) -> AsyncGenerator[Event, None]:
    """Yield what happens to the reader's task, seen by asking for it again and again.

    Pauses grow while nothing happens. Ends when the task ends or waits for its caller, not while it
    only waits for the turn of the reader's message to begin.
    """
    request = GetTaskRequest(id=reader.task_id)
    quiet = 0
    looks = Looks()
    while True:
        task = await service.get_task(request, context)
        news = reader.look(task)
        quiet = 0 if news else quiet + 1
        for event in news:
            yield reader.tell(event)
        if reader.is_settled:
            return
        if is_settled(task.state) and not reader.still_asks(task, looks=quiet):
            ids: dict[str, Any] = {"task_id": task.id, "context_id": task.context_id}
            yield reader.tell(TaskStatusUpdateEvent(**ids, status=task.status))
            return
        if looks.are_enough(task):
            return
        await asyncio.sleep(retry.pause(quiet))


async def _next(items: AsyncGenerator[StreamItem, None], *, within: float) -> StreamItem | None:
    try:
        async with asyncio.timeout(within):
            return await anext(items, None)
    except TimeoutError:
        return None


def _is_placed(item: StreamItem) -> bool:
    """Whether an event tells by itself where in its task it belongs."""
    return item.seq is not None or isinstance(item.event, Task | Message)


def _is_over(reader: StreamReader, ends_with_turn: bool, *, closed: bool) -> bool:
    """Whether nothing more is to be expected; ``closed`` if the server ended the stream itself.

    A stream may end, or stay open, while the task waits for its caller: the specification can be
    read both ways (§3.1.2, §3.1.6, §11.7). An agent that numbers events keeps a subscription open
    as long as the version of the protocol lets it, so one that ends before is taken up again,
    perhaps at another server of it.
    """
    if reader.message is not None:
        return True
    if reader.state is None or reader.is_old:
        return False
    asks = reader.state is TaskState.INPUT_REQUIRED
    if reader.state.is_terminal or (ends_with_turn and asks):
        return True
    is_open = reader.numbered and reader.seq is not None and not reader.is_final
    goes_on = is_open and not ends_with_turn
    return closed and reader.state.is_interrupted and not goes_on


def _subscription(service: A2AService, context: CallContext, reader: StreamReader) -> Source:
    after = None if reader.seq is None else str(reader.seq)
    request = SubscribeToTaskRequest(id=reader.task_id)
    resumed = msgspec.structs.replace(context, last_event_id=after)
    return lambda: service.subscribe_to_task(request, resumed)


def _backoff(retry: Retry, nth: int, cut: Exception | None) -> float:
    wished: float | None = getattr(cut, "retry_after", None)
    return retry.pause(nth) if wished is None else min(wished, LONGEST_WAIT)


class EventStream:
    """The events of a message or a task: an async iterator, once each and in order.

    ``task_id``, ``context_id`` and ``state`` are what is known so far, ``seq`` the number of the
    last event where the agent numbers them: ``subscribe(task_id, after=seq)`` goes on from it,
    later or elsewhere. Leaving the loop early ends the stream; the task goes on.
    """

    def __init__(self, events: AsyncGenerator[Event, None], reader: StreamReader) -> None:
        self._events = events
        self._reader = reader

    @property
    def task_id(self) -> str:
        """The id of the task, empty until it is known."""
        return self._reader.task_id

    @property
    def context_id(self) -> str:
        """The id of the context, empty until it is known."""
        return self._reader.context_id

    @property
    def state(self) -> TaskState | None:
        """The state that the task was last seen in."""
        return self._reader.state

    @property
    def seq(self) -> int | None:
        """The number of the last event, where the agent numbers them."""
        return self._reader.seq

    @property
    def is_settled(self) -> bool:
        """Whether the task has ended or waits for its caller, by the events that came so far.

        The question that the stream's own message answers does not count.
        """
        return self._reader.is_settled

    @property
    def before(self) -> Task | None:
        """The task as it stood when a message continued it, once the stream has begun.

        ``None`` for a message that begins a task, and where the agent did not tell.
        """
        return self._reader.before

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading and give the connection up. Idempotent; the task goes on."""
        await self._events.aclose()
