"""Those who wait for a task: each for the reply of the turn that took its message (E2)."""

from __future__ import annotations

from parley.agent.ticket import Ticket
from parley.log.events import Received
from parley.model.errors import A2AError, OverloadedError, UnsupportedOperationError
from parley.model.parts import Message
from parley.model.tasks import Task


class Senders:
    """The tickets of one task.

    ``present`` are those of the turn that runs, ``waiting`` those whose message no turn has taken,
    by the message's entry in the log. ``expected`` are the tickets of messages, to any task, that
    are on their way into the log: a turn may see one there before its sender hears of it.
    """

    __slots__ = ("_expected", "_taken", "present", "waiting")

    def __init__(self, expected: dict[str, Ticket]) -> None:
        self._expected = expected
        self.present: list[Ticket] = []
        self.waiting: dict[str, Ticket] = {}
        self._taken: set[str] = set()

    def took(self, received: Received, turn: int) -> None:
        """Note that ``turn`` takes a message: its sender gets that turn's reply."""
        self._taken.add(received.entry)
        ticket = self.waiting.pop(received.entry, None) or self._expected.pop(received.entry, None)
        if ticket is not None:
            ticket.turn = turn
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

    def refuse_all(self, error: A2AError) -> None:
        """Refuse everyone."""
        self.refuse(error)
        self.refuse_waiting(error)

    def inherit(self, others: Senders) -> None:
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
