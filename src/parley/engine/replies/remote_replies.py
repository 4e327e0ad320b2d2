"""What becomes of a message whose turn no lane here answers for: the log says it.

The turn is in line, or runs on another replica. Whoever waits follows the log to the turn's end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from parley.engine.replies.reply_handle import Named, ReplyHandle
from parley.engine.replies.waiters import ended
from parley.model.errors import A2AError, OverloadedError, TaskNotFoundError
from parley.model.tasks import Task, TaskState, TaskStatusUpdateEvent
from parley.store.bus.subscriptions import LocalHints, Subscription
from parley.store.events import Kind, LoggedEvent, Received, TurnStarted
from parley.store.fold import Fold
from parley.store.follow import PAGE, TaskGone, follow
from parley.store.task_store import StoreError, TaskRecord, TaskStore


class RemoteReplies:
    """Finds the replies of turns in the log, for those who wait here.

    ``unavailable`` makes what a caller is told of a store that does not work.
    """

    def __init__(
        self, store: TaskStore, hints: LocalHints, unavailable: Callable[[StoreError], A2AError]
    ) -> None:
        self._store = store
        self._hints = hints
        self._unavailable = unavailable
        self._is_closed = False
        self._waits: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many senders wait for a turn that no lane here answers for."""
        return len(self._waits)

    def open(self) -> None:
        """Let senders wait."""
        self._is_closed = False

    def close(self) -> None:
        """Let nobody wait any longer: everyone gets the task as it stands."""
        self._is_closed = True
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():  # one that has just expired cannot be made to end sooner
                wait.reschedule(now)

    async def until_idle(self) -> None:
        """Wait until nobody waits."""
        while self._waits:
            self._idle.clear()
            await self._idle.wait()

    async def settle(self, ticket: ReplyHandle, timeout: float) -> None:
        """Give a ticket the task as the turn left it that took its message (E2).

        It is refused when the task ended before a turn took the message, and left as it is after
        ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(0 if self._is_closed else timeout) as wait:
                self._waits.add(wait)
                try:
                    ticket.resolve(await self._reply(ticket))
                finally:
                    self._waits.discard(wait)
                    if not self._waits:
                        self._idle.set()
        except TimeoutError:
            pass
        except A2AError as error:
            ticket.refuse(error)
        except StoreError as error:
            ticket.refuse(self._unavailable(error))

    async def as_it_stands(self, ticket: ReplyHandle) -> Task:
        """Return the task of a ticket whose sender has waited long enough.

        Raises ``OverloadedError`` when no turn has taken the message, and the task asks for input:
        as a reply, the question that the message answers would look like one more.
        """
        try:
            turn = await self.turn_of(ticket)
            record = await self._store.load(ticket.task_id)
        except StoreError as error:
            raise self._unavailable(error) from error
        if record is None:
            raise _gone(ticket.task_id)
        if not turn and record.task.state is TaskState.INPUT_REQUIRED:
            raise OverloadedError(
                "the message is kept, and waits for its turn; look at the task later",
                retry_after=1,
            )
        return record.task

    async def _reply(self, ticket: ReplyHandle) -> Task:
        task_id = ticket.task_id
        with self._hints.subscribe(task_id) as live:
            record = await self._store.load(task_id, history=0, artifacts=False)
            if record is None:
                raise _gone(task_id)
            turn = await self.turn_of(ticket)
            if turn and _is_over(record, turn):
                return await self._left_by(turn, task_id)
            if record.task.state.is_terminal:
                raise ended(task_id)
            try:
                async with aclosing(self._after(record, live)) as batches:
                    async for batch in batches:
                        for event in batch:
                            state = _ending(event)
                            if state is None:
                                continue
                            turn = await self.turn_of(ticket)
                            if 0 < turn <= event.turn:
                                return await self._left_by(turn, task_id, event.seq)
                            if state.is_terminal:
                                raise ended(task_id)
            except TaskGone:
                pass
        raise _gone(task_id)

    def _after(
        self, record: TaskRecord, live: Subscription
    ) -> AsyncGenerator[Sequence[LoggedEvent], None]:
        """Yield what comes after a record that was loaded when ``live`` was there already."""
        live.seen = record.seq
        return follow(self._store, self._hints, record.task.id, record.seq, live=live)

    async def turn_of(self, ticket: ReplyHandle) -> int:
        """Return the number of the turn that took a ticket's message, 0 before one has."""
        if not ticket.turn:
            after = (ticket.received_at, 0)
            for record in await self._store.private_records(
                ticket.task_id, [Kind.TURN], after=after
            ):
                started = record.event
                if isinstance(started, TurnStarted) and ticket.entry in started.entries:
                    ticket.turn = started.turn
                    break
        return ticket.turn

    async def ticket_of(self, task_id: str, message_id: str = "") -> ReplyHandle:
        """Return a ticket for a message that a task received, or for the one that began it."""
        ticket = ReplyHandle(Named(task_id))
        ticket.is_logged = True
        if not message_id:
            ticket.turn = 1
        else:
            for record in await self._store.private_records(task_id, [Kind.RECEIVED]):
                received = record.event
                if isinstance(received, Received) and received.message.message_id == message_id:
                    ticket.entry, ticket.received_at = received.entry, record.seq
        ticket.hand_over(self)
        return ticket

    async def _left_by(self, turn: int, task_id: str, seq: int | None = None) -> Task:
        """Return a task exactly as one of its turns left it; ``seq`` is the turn's last event."""
        record = await self._store.load(task_id)
        if record is None:
            raise _gone(task_id)
        if record.seq == seq or (seq is None and record.turn == turn):
            return record.task
        started = deque(await self._store.private_records(task_id, [Kind.TURN]))
        folding, after = Fold(), 0
        while page := await self._store.events(task_id, after, PAGE):
            for event in page:
                while started and started[0].seq < event.seq:
                    folding.apply(started.popleft().event)
                folding.apply(event.event)
                if event.seq == seq or (event.turn >= turn and _ending(event) is not None):
                    return folding.task
            after = page[-1].seq
        return folding.task

    async def until_ended(self, task_id: str, timeout: float) -> None:
        """Wait until a task has ended, or for ``timeout`` seconds. Raises ``StoreError``."""
        with self._hints.subscribe(task_id) as live:
            record = await self._store.load(task_id, history=0, artifacts=False)
            if record is None or record.task.state.is_terminal:
                return
            try:
                async with (
                    asyncio.timeout(timeout),
                    aclosing(self._after(record, live)) as batches,
                ):
                    async for _ in batches:
                        pass
            except (TimeoutError, TaskGone):
                pass


_INTERRUPTED = (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)


def _ending(record: LoggedEvent) -> TaskState | None:
    """Return the state in which an event leaves the senders of its turn, if it does."""
    event = record.event
    if not isinstance(event, TaskStatusUpdateEvent):
        return None
    state = event.status.state
    return state if state.is_terminal or state in _INTERRUPTED else None


def _is_over(record: TaskRecord, turn: int) -> bool:
    """Whether a turn has left its senders, as far as the record tells."""
    if record.turn != turn:
        return record.turn > turn
    return not record.turn_open or record.task.state is TaskState.AUTH_REQUIRED


def _gone(task_id: str) -> TaskNotFoundError:
    return TaskNotFoundError(f"the task {task_id} is no longer kept", metadata={"taskId": task_id})
