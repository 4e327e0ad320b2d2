"""A caller's handle for the reply of the turn that takes its message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from parley.engine.shared_timer import SharedTimer
from parley.model.errors import A2AError, OverloadedError
from parley.model.parts import Message
from parley.model.tasks import Task
from parley.store.protocols.task_log import TaskRecord
from parley.store.snapshot import StoredTask


class HasTaskId(Protocol):
    """A task: a ``TaskRunner``, or a ``TaskReference``."""

    @property
    def task_id(self) -> str:
        """The task's id."""
        ...


class TaskReference(msgspec.Struct, frozen=True):
    """A task that no runner of this process has: only its id is known."""

    task_id: str


class ReplySource(Protocol):
    """Finds the reply to a message that no runner of this process takes: ``RemoteReplies``."""

    async def find_reply(self, handle: ReplyHandle, timeout: float) -> None:
        """Resolve or refuse the handle; leave it unchanged after ``timeout`` seconds."""
        ...


ReplyWatcher = Callable[[float | None], object]
"""What is called when a reply changes, with the time at which its own timeout ends."""


class ReplyHandle:
    """Waits for the reply to one message: a direct message, the task after its turn, or an error.

    ``is_logged``: a new task for the message is in the log. ``entry`` identifies the message among
    those that a task received, and ``found`` is that task as it was before. ``turn`` is the number
    of the turn that took the message, 0 until the log has that; ``received_at`` is the number of
    the event after which the log has the message. ``awaits_task``: a caller waits for the task, to
    show it before the turn ends. ``is_repeat``: another replica received the message before.
    ``on_settled`` is called once there is a reply or a delegate. ``timer`` is for a watcher that
    waits for the reply alone (see ``on_change``). Several senders of one repeated message may share
    a handle; one that disconnects does not affect the others.
    """

    __slots__ = (
        "_delegate",
        "_error",
        "_reply",
        "_task",
        "_times_out_at",
        "_waiters",
        "_watcher",
        "awaits_task",
        "done",
        "entry",
        "found",
        "is_logged",
        "is_repeat",
        "on_settled",
        "received_at",
        "timer",
        "turn",
    )

    def __init__(self, task: HasTaskId, *, entry: str = "") -> None:
        self._task = task
        self.entry = entry
        self.turn = 0
        self.received_at = 0
        self.is_logged = False
        self.awaits_task = False
        self.is_repeat = False
        self.done = False
        self.on_settled: Callable[[], object] | None = None
        self.found: TaskRecord | None = None
        self._reply: Task | StoredTask | Message | None = None
        self._error: A2AError | None = None
        self._delegate: ReplySource | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._watcher: ReplyWatcher | None = None
        self.timer: SharedTimer[ReplyHandle] | None = None
        self._times_out_at: float | None = None

    @property
    def task_id(self) -> str:
        """The id of the message's task, or the id it would get."""
        return self._task.task_id

    def resolve(self, reply: Task | StoredTask | Message) -> None:
        """Give the reply, unless there is one."""
        if not self.done:
            self._reply = reply
            self._finish()

    def refuse(self, error: A2AError) -> None:
        """Give an error for a reply, unless there is one."""
        if not self.done:
            self._error = error
            self._finish()

    def mark_repeat(self) -> None:
        """Refuse: another replica received the message first, so the store has its reply."""
        self.is_repeat = True
        self.refuse(OverloadedError("the message is being taken in by another", retry_after=1))

    def delegate(self, source: ReplySource) -> None:
        """Have ``source`` find the reply: no runner of this process will give it."""
        if self.done:
            return
        self._delegate = source
        if self.on_settled is not None:
            self.on_settled()
        self._wake()

    def _finish(self) -> None:
        self.done = True
        if self.on_settled is not None:
            self.on_settled()
        self._wake()

    def mark_logged(self) -> None:
        """Wake the waiting callers: the message's task is in the log."""
        self.is_logged = True
        if self._watcher is None or self.timer is None:
            self._wake()
            return
        if self._times_out_at is None:  # all that the watcher waits for is the reply
            self._times_out_at = self.timer.add(self, asyncio.get_running_loop())
        self._wake_waiters()

    def time_out(self) -> None:
        """Tell the watcher that its timeout has passed."""
        self._wake()

    def _wake(self) -> None:
        if self._watcher is not None:
            watcher, self._watcher = self._watcher, None
            ends_at, self._times_out_at = self._times_out_at, None
            if ends_at is not None and self.timer is not None:
                self.timer.discard(self)
            watcher(ends_at)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def on_change(self, watcher: ReplyWatcher) -> None:
        """Call ``watcher`` once, from within the next change. It must not raise.

        With a ``timer``, the task's first append is no change: it begins the timeout, as in
        ``wait``. The end of the timeout is a change. The watcher is told when its timeout ends, by
        the clock of the event loop, or ``None`` if it has not begun.
        """
        self._watcher = watcher

    def changed(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    @property
    def is_delegated(self) -> bool:
        """Whether no runner of this process will give the reply."""
        return self._delegate is not None

    @property
    def is_settled(self) -> bool:
        """Whether there is a reply, or a delegate that finds it."""
        return self.done or self._delegate is not None

    @property
    def reply(self) -> Task | Message:
        """The reply. Raises the error if the message was refused."""
        reply = self.stored_reply
        return reply.task() if isinstance(reply, StoredTask) else reply

    @property
    def stored_reply(self) -> Task | StoredTask | Message:
        """The reply; a task that was read from the store as it was read."""
        if self._error is not None:
            raise self._error
        assert self._reply is not None, "the reply is not there yet"
        return self._reply

    async def logged(self) -> None:
        """Wait until the message's task is in the log, or there is a reply."""
        self.awaits_task = True
        while not (self.is_logged or self.done):
            await self.changed()

    async def wait(self, timeout: float, ends_at: float | None = None) -> bool:
        """Wait for the reply, and return whether it is there.

        The ``timeout`` (seconds) starts once the message's task is in the log: before, the caller
        could not look for the task later. One that began before ends at ``ends_at``.
        """
        while not (self.is_logged or self.done):
            await self.changed()
        if self.done:
            return True
        timed_out = False

        def time_out() -> None:
            nonlocal timed_out
            timed_out = True
            self._wake_waiters()

        loop = asyncio.get_running_loop()
        if ends_at is None:
            ends_at = loop.time() + timeout
        timer = loop.call_at(ends_at, time_out)
        try:
            while not (self.is_settled or timed_out):
                await self.changed()
        finally:
            timer.cancel()
        if self._delegate is not None and not (self.done or timed_out):
            await self._delegate.find_reply(self, ends_at - loop.time())
        return self.done
