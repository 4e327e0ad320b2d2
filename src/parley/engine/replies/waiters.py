"""The callers that wait for a task, each for the reply of the turn that took its message (E2)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from parley.engine.replies.reply_handle import ReplyHandle, ReplySource
from parley.model.errors import A2AError, OverloadedError, UnsupportedOperationError
from parley.model.parts import Message
from parley.model.tasks import Task
from parley.store.events import MessageReceived
from parley.store.protocols.errors import (
    Conflict,
    DuplicateReceipt,
    Fenced,
    LeaseHeld,
    StoreError,
    TaskEnded,
    UnknownTask,
)
from parley.store.protocols.task_log import TaskLog

log = logging.getLogger("parley.engine")

CLAIM_LOST = (Fenced, LeaseHeld, TaskEnded, UnknownTask, Conflict)
"""The store's errors when another executor has claimed the task, or has ended it."""


class Waiters:
    """The reply handles of one task.

    ``current`` are those of the turn that runs, ``pending`` those whose message no turn has taken,
    by the message's entry in the log. ``arriving`` are the handles of messages, to any task, that
    are being appended: a turn may find one in the log before the append returns.
    """

    __slots__ = ("_arriving", "_taken", "current", "pending")

    def __init__(self, arriving: dict[str, ReplyHandle]) -> None:
        self._arriving = arriving
        self.current: list[ReplyHandle] = []
        self.pending: dict[str, ReplyHandle] = {}
        self._taken: set[str] = set()

    @property
    def are_left(self) -> bool:
        """Whether any caller waits."""
        return bool(self.current or self.pending)

    def take(self, received: MessageReceived) -> None:
        """Have the current turn take a message: its sender gets that turn's reply.

        The log does not have that yet, and may never: then a turn of another replica takes it.
        """
        self._taken.add(received.entry)
        handle = self.pending.pop(received.entry, None) or self._arriving.pop(received.entry, None)
        if handle is not None:
            self.current.append(handle)

    async def oldest_message(self, store: TaskLog, task_id: str) -> MessageReceived | None:
        """Return the oldest message in the task's log that no turn has taken."""
        skip = 0
        while found := await store.waiting_messages(task_id, skip=skip):
            received = found[0].event
            assert isinstance(received, MessageReceived)
            if received.entry not in self._taken:
                return received
            skip += 1  # a turn has taken it, and the log does not have that yet
        return None

    def resolve(self, reply: Task | Message) -> None:
        """Give the current turn's reply."""
        handles, self.current = self.current, []
        for handle in handles:
            handle.resolve(reply)

    def refuse(self, error: A2AError) -> None:
        """Refuse the messages of the current turn."""
        handles, self.current = self.current, []
        for handle in handles:
            handle.refuse(error)

    def delegate_pending(self, source: ReplySource) -> None:
        """Delegate the messages that no turn of this runner took: the task has ended, and the log
        says whether a turn on another replica took one before.
        """
        pending, self.pending = self.pending, {}
        for handle in pending.values():
            handle.delegate(source)

    def delegate(self, source: ReplySource) -> None:
        """Delegate everyone: ``source`` finds the replies in the log.

        Messages that are not in the log are refused: their senders may retry.
        """
        handles = [*self.current, *self.pending.values()]
        self.current, self.pending = [], {}
        for handle in handles:
            if handle.is_logged:
                handle.delegate(source)
            else:
                handle.refuse(shutting_down())

    def store_failed(
        self, error: StoreError, task_id: str, unavailable: Callable[[StoreError], A2AError]
    ) -> None:
        """Refuse everyone, unless the store or another executor will have their replies."""
        if isinstance(error, DuplicateReceipt):
            for handle in self.current:
                handle.mark_repeat()
            self.current = []
        elif isinstance(error, CLAIM_LOST):
            log.debug("task %s is another's by now: %s", task_id, error)
        else:
            log.error("task %s: the log could not be written: %s", task_id, error)
            refusal = unavailable(error)
            for handle in (*self.current, *self.pending.values()):
                handle.refuse(refusal)
            self.current, self.pending = [], {}

    def inherit(self, others: Waiters) -> None:
        """Take the handles of a runner that this one replaces."""
        self.current, others.current = others.current, []
        self.pending, others.pending = others.pending, {}


def ended(task_id: str) -> UnsupportedOperationError:
    """Return the error for a message to a task that has ended."""
    return UnsupportedOperationError(
        "the task has ended and takes no more messages; start a new one in the same context",
        metadata={"taskId": task_id},
    )


def shutting_down() -> OverloadedError:
    """Return the error for a message that this process can no longer process."""
    return OverloadedError("the server is shutting down", retry_after=1)
