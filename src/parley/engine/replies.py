"""Replies to messages: the caller's handle, the handles of a task, and replies from the log.

A caller gets the reply of the turn that receives its message (E2). If that turn is queued or runs
on another replica, ``RemoteReplies`` follows the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from parley.model.concurrency import Done, outcome_of
from parley.model.errors import (
    A2AError,
    OverloadedError,
    TaskNotFoundError,
    UnsupportedOperationError,
    shutting_down,
)
from parley.model.parts import Message
from parley.model.tasks import Task, TaskState, TaskStatusUpdateEvent
from parley.store.bus.subscriptions import LocalHints, Subscription
from parley.store.events import LoggedEvent, MessageReceived, RecordKind, TurnStarted
from parley.store.fold import Fold
from parley.store.follow import PAGE, TaskGone, follow
from parley.store.protocols.errors import (
    Conflict,
    DuplicateReceipt,
    Fenced,
    LeaseHeld,
    StoreError,
    TaskEnded,
    UnknownTask,
)
from parley.store.protocols.task_log import TaskRecord
from parley.store.snapshot import StoredTask
from parley.store.task_store import TaskStore

if TYPE_CHECKING:
    from parley.engine.turn.task_runner import TaskRunner


class TaskReference(msgspec.Struct, frozen=True):
    """A task without a runner in this process: only its id is known."""

    task_id: str


class ReplyHandle:
    """Waits for the reply to one message: a direct message, the task after its turn, or an error.

    ``is_logged``: the message's new task is in the log. ``entry`` identifies the message among the
    messages to a task, and ``found`` is the task before. ``turn`` is the number of the turn that
    received the message, 0 until the log has it; ``received_at`` is the event number after which
    the log has the message. ``awaits_task``: a caller waits for the task, to show it before the
    turn ends. ``is_repeat``: another replica received the message before. ``delegate`` finds the
    reply, if no runner of this process will give it. Several senders of one repeated message may
    share a handle; a sender that disconnects does not affect the others.
    """

    __slots__ = (
        "_error", "_reply", "_task", "_watchers", "awaits_task", "delegate", "done", "entry",
        "found", "is_logged", "is_repeat", "received_at", "turn",
    )  # fmt: skip

    def __init__(self, task: TaskRunner | TaskReference, *, entry: str = "") -> None:
        self._task = task
        self.entry = entry
        self.turn = 0
        self.received_at = 0
        self.is_logged = False
        self.awaits_task = False
        self.is_repeat = False
        self.done = False
        self.found: TaskRecord | None = None
        self.delegate: RemoteReplies | None = None
        self._reply: Task | StoredTask | Message | None = None
        self._error: A2AError | None = None
        self._watchers: tuple[Callable[[], object], ...] = ()

    @property
    def task_id(self) -> str:
        """The id of the message's task, or the id that a new task would get."""
        return self._task.task_id

    def resolve(self, reply: Task | StoredTask | Message) -> None:
        """Set the reply, unless there is one."""
        if not self.done:
            self._reply = reply
            self.done = True
            self._wake()

    def refuse(self, error: A2AError) -> None:
        """Set an error as the reply, unless there is one."""
        if not self.done:
            self._error = error
            self.done = True
            self._wake()

    def mark_repeat(self) -> None:
        """Reject the message, because another replica received it first and the store has its
        reply."""
        self.is_repeat = True
        self.refuse(OverloadedError("the message is being processed elsewhere", retry_after=1))

    def delegate_to(self, source: RemoteReplies) -> None:
        """Let ``source`` find the reply, since no runner of this process will give it."""
        if not self.done:
            self.delegate = source
            self._wake()

    def mark_logged(self) -> None:
        """Record that the message's task is in the log."""
        self.is_logged = True
        self._wake()

    def _wake(self) -> None:
        watchers, self._watchers = self._watchers, ()
        for watcher in watchers:
            watcher()

    def on_change(self, watcher: Callable[[], object]) -> None:
        """Call ``watcher`` once, during the next change. It must not raise."""
        self._watchers += (watcher,)

    def on_settled(self, watcher: Callable[[], object]) -> None:
        """Call ``watcher`` once, when there is a reply or a delegate. It must not raise."""

        def changed() -> None:
            if self.is_settled:
                watcher()
            else:
                self.on_change(changed)

        self.on_change(changed)

    @property
    def is_settled(self) -> bool:
        """True if there is a reply, or a delegate that finds it."""
        return self.done or self.delegate is not None

    @property
    def reply(self) -> Task | Message:
        """The reply. Raises the error of a rejected message."""
        reply = self.stored_reply
        return reply.task() if isinstance(reply, StoredTask) else reply

    @property
    def stored_reply(self) -> Task | StoredTask | Message:
        """The reply; a task from the store in its stored form."""
        if self._error is not None:
            raise self._error
        assert self._reply is not None, "there is no reply yet"
        return self._reply

    async def logged(self) -> None:
        """Wait until the message's task is in the log, or there is a reply."""
        self.awaits_task = True
        while not (self.is_logged or self.done):
            await outcome_of(lambda done: self.on_change(lambda: done(None)))


class ReplyWait:
    """A caller's wait for a reply. ``over`` is called once: there is a reply, or ``find`` gets it.

    The timeout begins once the message's task is in the log: before that, the caller could not look
    up the task later. ``timer`` is shared by all callers with the agent's own timeout; others have
    a ``timeout`` of their own (seconds). For ``over``: the caller requested ``history_length``
    messages of a task's history, and ``done`` receives the reply.
    """

    __slots__ = (
        "_ends_at", "_over", "_own_timer", "_timeout", "_timer", "done", "handle",
        "history_length",
    )  # fmt: skip

    def __init__(
        self,
        handle: ReplyHandle,
        timer: SharedTimer[ReplyWait],
        over: Callable[[ReplyWait], object],
        timeout: float | None = None,
        history_length: int | None = None,
        done: Done | None = None,
    ) -> None:
        self.handle = handle
        self.history_length = history_length
        self.done = done
        self._timer = timer
        self._timeout = timeout
        self._over: Callable[[ReplyWait], object] | None = over
        self._ends_at: float | None = None
        self._own_timer: asyncio.TimerHandle | None = None
        if handle.is_logged or handle.done:
            self._look()
        else:
            handle.on_change(self._look)

    def _look(self) -> None:
        """Check the handle, now and after each of its changes."""
        handle = self.handle
        if handle.done:
            self.end()
            return
        if self._ends_at is None and handle.is_logged:
            self._begin_timeout()
        if handle.delegate is not None:
            self.end()
        elif self._over is not None:
            handle.on_change(self._look)

    def _begin_timeout(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timeout is None:
            self._ends_at = self._timer.add(self, loop)
        else:
            self._ends_at = loop.time() + self._timeout
            self._own_timer = loop.call_at(self._ends_at, self.end)

    def end(self) -> None:
        """End the wait: there is a reply, a delegate for it, or no time left. Idempotent."""
        over, self._over = self._over, None
        if over is not None:
            if self._own_timer is not None:
                self._own_timer.cancel()
            elif self._ends_at is not None:
                self._timer.discard(self)
            over(self)

    async def find(self) -> bool:
        """Let the delegate find the reply in the remaining time. Return whether there is one."""
        handle = self.handle
        if handle.delegate is not None and not handle.done and self._ends_at is not None:
            left = self._ends_at - asyncio.get_running_loop().time()
            if left > 0:
                await handle.delegate.find_reply(handle, left)
        return handle.done


log = logging.getLogger("parley.engine")

CLAIM_LOST = (Fenced, LeaseHeld, TaskEnded, UnknownTask, Conflict)
"""The store's errors if another executor has claimed or ended the task."""


class Waiters:
    """The reply handles of one task.

    ``current`` waits for the running turn, ``pending`` for a turn that receives the message, by the
    message's entry in the log. ``arriving`` are the handles of messages, to any task, that are
    being appended: a turn may find one in the log before the append returns.
    """

    __slots__ = ("_arriving", "_taken", "current", "pending")

    def __init__(self, arriving: dict[str, ReplyHandle]) -> None:
        self._arriving = arriving
        self.current: list[ReplyHandle] = []
        self.pending: dict[str, ReplyHandle] = {}
        self._taken: set[str] = set()

    @property
    def are_left(self) -> bool:
        """True if any caller waits."""
        return bool(self.current or self.pending)

    def take(self, received: MessageReceived) -> None:
        """Assign a message to the current turn: its sender gets that turn's reply.

        The log does not have this yet, and may never have it: then a turn of another replica
        receives the message.
        """
        self._taken.add(received.entry)
        handle = self.pending.pop(received.entry, None) or self._arriving.pop(received.entry, None)
        if handle is not None:
            self.current.append(handle)

    async def oldest_message(self, store: TaskStore, task_id: str) -> MessageReceived | None:
        """Return the oldest message in the task's log that no turn has received."""
        skip = 0
        while found := await store.waiting_messages(task_id, skip=skip):
            received = found[0].event
            assert isinstance(received, MessageReceived)
            if received.entry not in self._taken:
                return received
            skip += 1  # a turn has received it, but the log does not have that yet
        return None

    def resolve(self, reply: Task | Message) -> None:
        """Set the current turn's reply."""
        handles, self.current = self.current, []
        for handle in handles:
            handle.resolve(reply)

    def refuse(self, error: A2AError) -> None:
        """Reject the messages of the current turn."""
        handles, self.current = self.current, []
        for handle in handles:
            handle.refuse(error)

    def delegate_pending(self, source: RemoteReplies) -> None:
        """Delegate the messages that no turn of this runner received.

        The task has ended, and the log shows whether a turn on another replica received one before.
        """
        pending, self.pending = self.pending, {}
        for handle in pending.values():
            handle.delegate_to(source)

    def delegate(self, source: RemoteReplies) -> None:
        """Delegate all handles: ``source`` finds the replies in the log.

        Messages that are not in the log are rejected: their senders may retry.
        """
        handles = [*self.current, *self.pending.values()]
        self.current, self.pending = [], {}
        for handle in handles:
            if handle.is_logged:
                handle.delegate_to(source)
            else:
                handle.refuse(shutting_down())

    def store_failed(
        self, error: StoreError, task_id: str, unavailable: Callable[[StoreError], A2AError]
    ) -> None:
        """Reject all messages, unless the store or another executor will have their replies."""
        if isinstance(error, DuplicateReceipt):
            for handle in self.current:
                handle.mark_repeat()
            self.current = []
        elif isinstance(error, CLAIM_LOST):
            log.debug("task %s belongs to another executor: %s", task_id, error)
        else:
            log.error("task %s: the log could not be written: %s", task_id, error)
            refusal = unavailable(error)
            for handle in (*self.current, *self.pending.values()):
                handle.refuse(refusal)
            self.current, self.pending = [], {}

    def inherit(self, others: Waiters) -> None:
        """Adopt the handles of a runner that this one replaces."""
        self.current, others.current = others.current, []
        self.pending, others.pending = others.pending, {}


def ended(task_id: str) -> UnsupportedOperationError:
    """Return the error for a message to a task that has ended."""
    return UnsupportedOperationError(
        "the task has ended and accepts no more messages; start a new one in the same context",
        metadata={"taskId": task_id},
    )


class RemoteReplies:
    """Finds the replies of turns in the log, for callers that wait in this process.

    ``unavailable`` makes the error for a failed store.
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
        """The number of callers that wait for a queued turn or a turn of another replica."""
        return len(self._waits)

    def open(self) -> None:
        """Allow callers to wait."""
        self._is_closed = False

    def close(self) -> None:
        """End all waits: every caller gets the current task."""
        self._is_closed = True
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():  # an expired timeout cannot be rescheduled
                wait.reschedule(now)

    async def wait_idle(self) -> None:
        """Wait until no caller waits."""
        while self._waits:
            self._idle.clear()
            await self._idle.wait()

    async def find_reply(self, handle: ReplyHandle, timeout: float) -> None:
        """Resolve a handle with the task after the turn that received its message (E2).

        Rejects the message if the task ended before a turn received it; leaves the handle unchanged
        after ``timeout`` seconds.
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
        """Return the current task, as the reply to a caller whose wait timed out.

        It has ``history`` of its last messages, or all.

        Raises ``OverloadedError`` if no turn has received the message and the task asks for input:
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
                "the message is stored, and waits for its turn; look at the task later",
                retry_after=1,
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
        """Return the number of the turn that received a handle's message, 0 if there is none."""
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
        """Return a handle for a message that a task received, by default its first message."""
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
        handle.delegate_to(self)
        return handle

    async def _task_after(
        self, turn: int, task_id: str, seq: int | None = None
    ) -> Task | StoredTask:
        """Return a task exactly as it was after a turn; ``seq`` is that turn's last event."""
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
    """Return the event's state if it completes the reply of its turn."""
    event = record.event
    if not isinstance(event, TaskStatusUpdateEvent):
        return None
    state = event.status.state
    return state if state.is_terminal or state in _INTERRUPTED else None


def _has_reply(record: TaskRecord, turn: int) -> bool:
    """Return whether a turn has its reply, as far as the record shows."""
    if record.turn != turn:
        return record.turn > turn
    return not record.turn_open or record.state is TaskState.AUTH_REQUIRED


def _not_kept(task_id: str) -> TaskNotFoundError:
    return TaskNotFoundError(f"the task {task_id} is no longer kept", metadata={"taskId": task_id})


T = TypeVar("T")


class SharedTimer(Generic[T]):
    """Calls ``fire`` with each of many objects ``seconds`` after it was added.

    Nearly all objects are discarded early, as quick functions reply in time: a timer of the event
    loop for each would cost more than some of these functions do. The objects are kept in the order
    of their times, and a discarded object is dropped.
    """

    def __init__(self, seconds: float, fire: Callable[[T], None]) -> None:
        self._seconds = seconds
        self._fire = fire
        self._times: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, each: T, loop: asyncio.AbstractEventLoop) -> float:
        """Schedule an object; ``loop`` is the running event loop.

        Returns the time of its timeout, by the clock of the loop.
        """
        when = self._times[each] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(when, self._on_time, loop)
        return when

    def discard(self, each: T) -> None:
        """Cancel an object. Idempotent."""
        self._times.pop(each, None)

    def close(self) -> None:
        """Discard everything."""
        self._times.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while (each := next(iter(self._times), None)) is not None and self._times[each] <= now:
            del self._times[each]
            self._fire(each)
        if each is not None and self._timer is None:
            self._timer = loop.call_at(self._times[each], self._on_time, loop)
