"""The outcome of a call of a part: an answer or a failure. The accounting of budgets."""

from __future__ import annotations

from typing import Any, Literal, Self

from parley.client.answer import Answer
from parley.engine.handoff import Handoff
from parley.engine.turn.attempt import Failed
from parley.extensions.call_chain import ChainBudget
from parley.extensions.usage import Spent, spent_on
from parley.model.ids import new_id
from parley.model.parts import Message, Part, Role
from parley.model.struct import A2AStruct

FailureReason = Literal[
    "failed", "rejected", "canceled", "refused", "timeout", "unreachable", "asks", "budget"
]
"""The reason why a part has no answer.

``failed``, ``rejected``, ``canceled``: its task ended in this state. ``refused``: it rejected the
message. ``timeout``: its time was over. ``unreachable``: the call itself failed. ``asks``: it asks
a question, and there is no caller to ask. ``budget``: the budget was used up.
"""


NOTHING_SPENT = Spent()


class PartFailure(A2AStruct, frozen=True, kw_only=True):
    """The failure of a part. ``code`` is the code of the A2A error, if there was one.

    ``spent`` is the cost of the failed call, if its agent reports it.
    """

    part: str
    reason: FailureReason
    text: str = ""
    code: str = ""
    spent: Spent = NOTHING_SPENT

    def __str__(self) -> str:
        return f"{self.part}: {self.text or _WORDS[self.reason]}"


class PartFailed(Failed):
    """A part of a composition has no answer, and the composition has none without it."""

    def __init__(self, *failures: PartFailure) -> None:
        self.failures = failures
        super().__init__("; ".join(map(str, failures)))


class HandsOver(Exception):
    """Raised when a function that is a part hands over the composition's conversation."""

    def __init__(self, handoff: Handoff) -> None:
        self.handoff = handoff
        super().__init__("a part of the composition hands the conversation over")


class Outcome(Answer[Any]):
    """The outcome of a call of a part: an answer, or a ``failure``.

    It has the members of ``parley.Answer``; without an answer they are empty. ``address`` is the
    address of the part's agent, empty for a function. ``spent`` is the cost of the answer,
    including the call. ``is_shown``: its artifacts are already in the composition's own task.
    """

    __slots__ = ("address", "failure", "is_shown", "part", "spent")

    def __init__(
        self,
        *,
        part: str,
        answer: Answer[Any] | None = None,
        failure: PartFailure | None = None,
        address: str = "",
        spent: Spent = NOTHING_SPENT,
        is_shown: bool = False,
    ) -> None:
        super().__init__(None, agent=part)
        if answer is not None:
            self._take(answer)
        self.part = part
        self.failure = failure
        self.address = address
        self.spent = spent
        self.is_shown = is_shown

    @property
    def ok(self) -> bool:
        """True if there is an answer."""
        return self.failure is None

    def required(self) -> Self:
        """Return this outcome. Raises ``PartFailed`` without an answer."""
        if self.failure is not None:
            raise PartFailed(self.failure)
        return self

    def as_message(self) -> Message:
        """Return the answer as a message for another part.

        It refers to the task of the answer, which another part of the same agent may read. Raises
        ``PartFailed`` without an answer.
        """
        self.required()
        return Message(
            message_id=new_id(),
            role=Role.USER,
            parts=self.parts or (Part(text=""),),
            reference_task_ids=(self.id,) if self.id else (),
        )


def answered(part: str, answer: Answer[Any], address: str = "", **known: Any) -> Outcome:
    """Return the outcome of an answered call."""
    spent = spent_on(answer) + Spent(calls=1 if address else 0)
    return Outcome(part=part, answer=answer, address=address, spent=spent, **known)


_WORDS: dict[str, str] = {
    "failed": "it failed",
    "rejected": "it rejected the request",
    "canceled": "its task was canceled",
    "refused": "it rejected the message",
    "timeout": "it did not answer in time",
    "unreachable": "it could not be reached",
    "asks": "it asks a question, and there is no caller to ask",
    "budget": "there is nothing left to spend on it",
}


Budget = ChainBudget
"""The maximum cost of one message, set by a composition: ``Budget(calls=20, tokens=50_000)``."""


class Spending:
    """Sums the cost of the calls in one attempt. Answers from the log count as before.

    ``budgets`` are the active budgets: the composition's own, and its caller's.
    """

    def __init__(self, *budgets: Budget | None) -> None:
        self.budget = _least(*[each for each in budgets if each])
        self.spent = Spent()
        self._reserved = Spent()

    @property
    def is_limited(self) -> bool:
        """Whether there is a budget."""
        return bool(self.budget)

    @property
    def left(self) -> Budget:
        """The budget that is neither spent nor reserved for running calls."""
        gone, budget = self.spent + self._reserved, self.budget
        return Budget(
            calls=None if budget.calls is None else max(0, budget.calls - gone.calls),
            tokens=None if budget.tokens is None else max(0, budget.tokens - gone.tokens),
            cost=None if budget.cost is None else max(0.0, budget.cost - gone.cost),
        )

    @property
    def exhausted(self) -> str:
        """A description of the used-up budget; empty while a call may be made."""
        left, budget = self.left, self.budget
        if left.calls is not None and left.calls < 1:
            return f"the budget of {budget.calls} calls is spent"
        if left.tokens is not None and left.tokens < 1:
            return f"the budget of {budget.tokens} tokens is spent"
        if left.cost is not None and left.cost <= 0:
            return f"the budget, a cost of {budget.cost:g}, is spent"
        return ""

    def set_aside(self, share: int) -> Budget:
        """Reserve the budget of one call among ``share`` concurrent calls, and return it.

        The call itself is included. ``account`` returns the reserve. With a single call, only the
        call itself is reserved.
        """
        left = self.left
        given = Budget(
            calls=None if left.calls is None else max(1, left.calls // share),
            tokens=None if left.tokens is None else max(1, left.tokens // share),
            cost=None if left.cost is None else left.cost / share,
        )
        self._reserved += _reserved(given, share)
        return given

    def account(self, given: Budget, share: int, outcome: Outcome) -> None:
        """Add the cost of a call, and return the budget that was reserved for it."""
        aside = _reserved(given, share)
        self._reserved = Spent(
            calls=self._reserved.calls - aside.calls,
            tokens=self._reserved.tokens - aside.tokens,
            cost=self._reserved.cost - aside.cost,
        )
        self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        """Add the cost of a call without a reserved budget."""
        self.spent += outcome.spent


def for_the_agent(given: Budget) -> Budget | None:
    """Return the budget to send to the agent of a call, without the call itself."""
    if not given:
        return None
    calls = None if given.calls is None else given.calls - 1
    return Budget(calls=calls, tokens=given.tokens, cost=given.cost)


def _reserved(given: Budget, share: int) -> Spent:
    if share <= 1:
        return Spent(calls=0 if given.calls is None else 1)
    return Spent(calls=given.calls or 0, tokens=given.tokens or 0, cost=given.cost or 0.0)


def _least(*budgets: Budget) -> Budget:
    def least(values: list[float | None]) -> float | None:
        return min([value for value in values if value is not None], default=None)

    calls, tokens = least([b.calls for b in budgets]), least([b.tokens for b in budgets])
    return Budget(
        calls=None if calls is None else int(calls),
        tokens=None if tokens is None else int(tokens),
        cost=least([b.cost for b in budgets]),
    )
