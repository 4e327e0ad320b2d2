"""Those who wait for a task: each for the reply of the turn that took its message (E2)."""

from __future__ import annotations

from parley.engine.replies.reply_handle import ReplyHandle, ReplySource
from parley.model.errors import A2AError, OverloadedError, UnsupportedOperationError
from parley.model.parts import Message
from parley.model.tasks import Task
from parley.store.events import Received


class Waiters:
    """The tickets of one task.

    ``present`` are those of the turn that runs, ``waiting`` those whose message no turn has taken,
    by the message's entry in the log. ``expected`` are the tickets of messages, to any task, that
    are on their way into the log: a turn may see one there before its sender hears of it.
    """

    __slots__ = ("_expected", "_taken", "present", "waiting")

    def __init__(self, expected: dict[str, ReplyHandle]) -> None:
        self._expected = expected
        self.present: list[ReplyHandle] = []
        self.waiting: dict[str, ReplyHandle] = {}
        self._taken: set[str] = set()

    @property
    def are_left(self) -> bool:
        """Whether anybody waits."""
        return bool(self.present or self.waiting)

    def took(self, received: Received) -> None:
        """Note that the present turn takes a message: its sender gets that turn's reply.

        The log does not say so yet, and may never: then it is another's turn that takes it.
        """
        self._taken.add(received.entry)
        ticket = self.waiting.pop(received.entry, None) or self._expected.pop(received.entry, None)
        if ticket is not None:
            self.present.append(ticket)

    def has_taken(self, received: Received) -> bool:
        """Whether a turn of this lane took the message; the log may not say so yet."""
        return received.entry in self._taken

    def resolve(self, reply: Task | Message) -> None:
        """Give the present turn's reply."""
        tickets, self.present = self.present, []
        for ticket in tickets:
            ticket.resolve(reply)

    def refuse(self, error: A2AError) -> None:
        """Give the present turn's senders an error for a reply."""
        tickets, self.present = self.present, []
        for ticket in tickets:
            ticket.refuse(error)

    def refuse_waiting(self, error: A2AError) -> None:
        """Refuse the messages that no turn took."""
        waiting, self.waiting = self.waiting, {}
        for ticket in waiting.values():
            ticket.refuse(error)

    def hand_over_waiting(self, elsewhere: ReplySource) -> None:
        """Leave those whose message no turn of this lane took to ``elsewhere``: the task has ended,
        and the log says whether a turn took it before, on another replica.
        """
        waiting, self.waiting = self.waiting, {}
        for ticket in waiting.values():
            ticket.hand_over(elsewhere)

    def refuse_all(self, error: A2AError) -> None:
        """Refuse everyone."""
        self.refuse(error)
        self.refuse_waiting(error)

    def hand_over(self, elsewhere: ReplySource) -> None:
        """Leave everyone to ``elsewhere``, for whom the log is to tell what came of it.

        Those whose message is not in the log are refused: they may try again.
        """
        tickets = [*self.present, *self.waiting.values()]
        self.present, self.waiting = [], {}
        for ticket in tickets:
            if ticket.is_logged:
                ticket.hand_over(elsewhere)
            else:
                ticket.refuse(shutting_down())

    def repeat(self) -> None:
        """Tell the senders of a message that another send of it came first."""
        for ticket in self.present:
            ticket.repeat()
        self.present = []

    def inherit(self, others: Waiters) -> None:
        """Take over the tickets of a lane that this one replaces."""
        self.present, others.present = others.present, []
        self.waiting, others.waiting = others.waiting, {}


def ended(task_id: str) -> UnsupportedOperationError:
    """Return the error for a message to a task that has ended."""
    return UnsupportedOperationError(
        "the task has ended and takes no more messages; start a new one in the same context",
        metadata={"taskId": task_id},
    )


def shutting_down() -> OverloadedError:
    """Return the error for those whom this process can no longer serve."""
    return OverloadedError("the server is shutting down", retry_after=1)
