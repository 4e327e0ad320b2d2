"""What a sender holds while its message is worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from parley.model.errors import A2AError, OverloadedError
from parley.model.parts import Message
from parley.model.tasks import Task
from parley.store.task_store import TaskRecord


class HasTask(Protocol):
    """What knows the task that a message belongs to."""

    @property
    def task_id(self) -> str:
        """The task's id."""
        ...


class Named(msgspec.Struct, frozen=True):
    """A task of which no more is known here than its id."""

    task_id: str


class ReplySource(Protocol):
    """Who finds out what came of a message that no lane of this process answers."""

    async def settle(self, ticket: ReplyHandle, timeout: float) -> None:
        """Resolve or refuse the ticket; leave it as it is when that takes too long."""
        ...


class ReplyHandle:
    """One sender's interest in one turn.

    The reply is a direct message, or the task as the turn left it, or the error that refused the
    message. ``is_logged`` says that a new task for the message is in the log. ``entry`` names the
    message among those that a task received, and ``found`` is that task as it was before.
    ``turn`` is the number of the turn that took the message, 0 while that is not known to be in the
    log; ``received_at`` is the number of the event after which the log has the message.
    ``is_repeat`` says that the message was sent before, and taken in by another replica. Several
    senders of one repeated message may share a ticket; none can spoil it for another by going away.
    """

    __slots__ = (
        "_elsewhere",
        "_error",
        "_lane",
        "_reply",
        "_waiters",
        "done",
        "entry",
        "forget",
        "found",
        "is_logged",
        "is_repeat",
        "received_at",
        "turn",
    )

    def __init__(self, lane: HasTask, *, entry: str = "") -> None:
        self._lane = lane
        self.entry = entry
        self.turn = 0
        self.received_at = 0
        self.is_logged = False
        self.is_repeat = False
        self.done = False
        self.forget: Callable[[], object] | None = None
        self.found: TaskRecord | None = None
        self._reply: Task | Message | None = None
        self._error: A2AError | None = None
        self._elsewhere: ReplySource | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def task_id(self) -> str:
        """The id of the message's task, or the one that it would have."""
        return self._lane.task_id

    def resolve(self, reply: Task | Message) -> None:
        """Give the reply, unless there is one."""
        if not self.done:
            self._reply = reply
            self._finish()

    def refuse(self, error: A2AError) -> None:
        """Give an error for a reply, unless there is one."""
        if not self.done:
            self._error = error
            self._finish()

    def repeat(self) -> None:
        """Say that another send of the message came first: the store knows what came of it."""
        self.is_repeat = True
        self.refuse(OverloadedError("the message is being taken in by another", retry_after=1))

    def hand_over(self, elsewhere: ReplySource) -> None:
        """Have the reply found by ``elsewhere``: no lane here gives it."""
        if self.done:
            return
        self._elsewhere = elsewhere
        if self.forget is not None:
            self.forget()
        self._wake()

    def _finish(self) -> None:
        self.done = True
        if self.forget is not None:
            self.forget()
        self._wake()

    def mark_logged(self) -> None:
        """Tell those who wait that the message's task is in the log."""
        self.is_logged = True
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def progress(self) -> asyncio.Future[None]:
        """Return what is done when something has changed."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    @property
    def is_elsewhere(self) -> bool:
        """Whether no lane here will give the reply."""
        return self._elsewhere is not None

    @property
    def is_settled(self) -> bool:
        """Whether there is a reply, or no lane here that will give it."""
        return self.done or self._elsewhere is not None

    @property
    def reply(self) -> Task | Message:
        """The reply. Raises the error that refused the message."""
        if self._error is not None:
            raise self._error
        assert self._reply is not None, "the reply is not there yet"
        return self._reply

    async def begun(self) -> None:
        """Wait until there is a task in the log, or a reply."""
        while not (self.is_logged or self.done):
            await self.progress()

    async def answered(self, timeout: float) -> bool:
        """Wait for the reply, and return whether it is there.

        Once there is a task in the log the wait is ``timeout`` seconds at most: before, nobody
        could find what it would give up on.
        """
        await self.begun()
        if self.done:
            return True
        tired = False

        def give_up() -> None:
            nonlocal tired
            tired = True
            self._wake()

        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout, give_up)
        try:
            while not (self.is_settled or tired):
                await self.progress()
        finally:
            timer.cancel()
        if self._elsewhere is not None and not (self.done or tired):
            await self._elsewhere.settle(self, timer.when() - loop.time())
        return self.done
