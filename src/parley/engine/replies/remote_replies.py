"""Finds the replies of turns that are queued or run on another replica, by following the log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from parley.engine.replies.reply_handle import ReplyHandle, TaskReference
from parley.engine.replies.waiters import ended
from parley.model.errors import A2AError, OverloadedError, TaskNotFoundError
from parley.model.tasks import Task, TaskState, TaskStatusUpdateEvent
from parley.store.bus.subscriptions import LocalHints, Subscription
from parley.store.events import LoggedEvent, MessageReceived, RecordKind, TurnStarted
from parley.store.fold import Fold
from parley.store.follow import PAGE, TaskGone, follow
from parley.store.protocols.errors import StoreError
from parley.store.protocols.task_log import TaskLog, TaskRecord
from parley.store.snapshot import StoredTask


class RemoteReplies:
    """Finds the replies of turns in the log, for callers that wait in this process.

    ``unavailable`` makes the error for a store that failed.
    """

    def __init__(
        self, store: TaskLog, hints: LocalHints, unavailable: Callable[[StoreError], A2AError]
    ) -> None:
        self._store = store
        self._hints = hints
        self._unavailable = unavailable
        self._is_closed = False
        self._waits: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()

    @property
    def waiting(self) -> int:
        """The number of callers that wait for a turn of another replica, or a queued one."""
        return len(self._waits)

    def open(self) -> None:
        """Let callers wait."""
        self._is_closed = False

    def close(self) -> None:
        """End all waits: every caller gets the task as it is."""
        self._is_closed = True
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():  # one that has just expired cannot be made to end sooner
                wait.reschedule(now)

    async def wait_idle(self) -> None:
        """Wait until no caller waits."""
        while self._waits:
            self._idle.clear()
            await self._idle.wait()

    async def find_reply(self, handle: ReplyHandle, timeout: float) -> None:
        """Resolve a handle with the task as the turn that took its message left it (E2).

        Refuses it when the task ended before a turn took the message; leaves it unchanged after
        ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(0 if self._is_closed else timeout) as wait:
                self._waits.add(wait)
                try:
                    handle.resolve(await self._reply(handle))
                finally:
                    self._waits.discard(wait)
                    if not self._waits:
                        self._idle.set()
        except TimeoutError:
            pass
        except A2AError as error:
            handle.refuse(error)
        except StoreError as error:
            handle.refuse(self._unavailable(error))

    async def current_task(self, handle: ReplyHandle, history: int | None) -> StoredTask:
        """Return the task as it is, as the reply to a caller whose wait timed out.

        It has ``history`` of its last messages, or all.

        Raises ``OverloadedError`` when no turn has taken the message, and the task asks for input:
        as a reply, the question that the message answers would look like a new one.
        """
        try:
            turn = await self.turn_of(handle)
            record = await self._store.load(handle.task_id, history=history)
        except StoreError as error:
            raise self._unavailable(error) from error
        if record is None:
            raise _not_kept(handle.task_id)
        if not turn and record.state is TaskState.INPUT_REQUIRED:
            raise OverloadedError(
                "the message is kept, and waits for its turn; look at the task later", retry_after=1
            )
        return record.stored

    async def _reply(self, handle: ReplyHandle) -> Task | StoredTask:
        task_id = handle.task_id
        with self._hints.subscribe(task_id) as live:
            record = await self._store.load(task_id, history=0, artifacts=False)
            if record is None:
                raise _not_kept(task_id)
            turn = await self.turn_of(handle)
            if turn and _has_reply(record, turn):
                return await self._task_after(turn, task_id)
            if record.state.is_terminal:
                raise ended(task_id)
            try:
                async with aclosing(self._after(record, live)) as batches:
                    async for batch in batches:
                        for event in batch:
                            state = _reply_state(event)
                            if state is None:
                                continue
                            turn = await self.turn_of(handle)
                            if 0 < turn <= event.turn:
                                return await self._task_after(turn, task_id, event.seq)
                            if state.is_terminal:
                                raise ended(task_id)
            except TaskGone:
                pass
        raise _not_kept(task_id)

    def _after(
        self, record: TaskRecord, live: Subscription
    ) -> AsyncGenerator[Sequence[LoggedEvent], None]:
        """Yield the events after a record that was loaded after ``live`` was subscribed."""
        live.seen = record.seq
        return follow(self._store, self._hints, record.stored.task_id, record.seq, live=live)

    async def turn_of(self, handle: ReplyHandle) -> int:
        """Return the number of the turn that took a handle's message, 0 if none has."""
        if not handle.turn:
            after = (handle.received_at, 0)
            for record in await self._store.private_records(
                handle.task_id, [RecordKind.TURN], after=after
            ):
                started = record.event
                if isinstance(started, TurnStarted) and handle.entry in started.entries:
                    handle.turn = started.turn
                    break
        return handle.turn

    async def handle_for(self, task_id: str, message_id: str = "") -> ReplyHandle:
        """Return a handle for a message that a task received, or for the one that began it."""
        handle = ReplyHandle(TaskReference(task_id))
        handle.is_logged = True
        if not message_id:
            handle.turn = 1
        else:
            for record in await self._store.private_records(task_id, [RecordKind.RECEIVED]):
                received = record.event
                if (
                    isinstance(received, MessageReceived)
                    and received.message.message_id == message_id
                ):
                    handle.entry, handle.received_at = received.entry, record.seq
        handle.delegate(self)
        return handle

    async def _task_after(
        self, turn: int, task_id: str, seq: int | None = None
    ) -> Task | StoredTask:
        """Return a task exactly as one of its turns left it; ``seq`` is that turn's last event."""
        record = await self._store.load(task_id)
        if record is None:
            raise _not_kept(task_id)
        if record.seq == seq or (seq is None and record.turn == turn):
            return record.stored
        started = deque(await self._store.private_records(task_id, [RecordKind.TURN]))
        folding, after = Fold(), 0
        while page := await self._store.events(task_id, after, PAGE):
            for event in page:
                while started and started[0].seq < event.seq:
                    folding.apply(started.popleft().event)
                folding.apply(event.event)
                if event.seq == seq or (event.turn >= turn and _reply_state(event) is not None):
                    return folding.task
            after = page[-1].seq
        return folding.task

    async def wait_ended(self, task_id: str, timeout: float) -> None:
        """Wait until a task has ended, or for ``timeout`` seconds. Raises ``StoreError``."""
        with self._hints.subscribe(task_id) as live:
            record = await self._store.load(task_id, history=0, artifacts=False)
            if record is None or record.state.is_terminal:
                return
            try:
                async with asyncio.timeout(timeout), aclosing(self._after(record, live)) as batches:
                    async for _ in batches:
                        pass
            except (TimeoutError, TaskGone):
                pass


_INTERRUPTED = (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)


def _reply_state(record: LoggedEvent) -> TaskState | None:
    """Return the event's state if it ends the wait for its turn's reply."""
    event = record.event
    if not isinstance(event, TaskStatusUpdateEvent):
        return None
    state = event.status.state
    return state if state.is_terminal or state in _INTERRUPTED else None


def _has_reply(record: TaskRecord, turn: int) -> bool:
    """Whether a turn has its reply, as far as the record tells."""
    if record.turn != turn:
        return record.turn > turn
    return not record.turn_open or record.state is TaskState.AUTH_REQUIRED


def _not_kept(task_id: str) -> TaskNotFoundError:
    return TaskNotFoundError(f"the task {task_id} is no longer kept", metadata={"taskId": task_id})
