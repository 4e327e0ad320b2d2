"""What a composition may still spend: its budget and its caller's, less what its parts used."""

from __future__ import annotations

from parley.compose.outcome import Outcome
from parley.extensions.call_chain import ChainBudget
from parley.extensions.spent import Spent

Budget = ChainBudget
"""What one message may spend, as a composition sets it: ``Budget(calls=20, tokens=50_000)``."""


class Spending:
    """Counts what the calls of one attempt spend. Answers from the log count as they did before.

    ``budgets`` are those that hold: the composition's own, and that of its caller.
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
        """What is neither spent nor set aside for calls under way."""
        gone, budget = self.spent + self._reserved, self.budget
        return Budget(
            calls=None if budget.calls is None else max(0, budget.calls - gone.calls),
            tokens=None if budget.tokens is None else max(0, budget.tokens - gone.tokens),
            cost=None if budget.cost is None else max(0.0, budget.cost - gone.cost),
        )

    @property
    def exhausted(self) -> str:
        """What of the budget is used up, as words; empty while a call may be made."""
        left, budget = self.left, self.budget
        if left.calls is not None and left.calls < 1:
            return f"the budget of {budget.calls} calls is spent"
        if left.tokens is not None and left.tokens < 1:
            return f"the budget of {budget.tokens} tokens is spent"
        if left.cost is not None and left.cost <= 0:
            return f"the budget, a cost of {budget.cost:g}, is spent"
        return ""

    def set_aside(self, share: int) -> Budget:
        """Set aside what one of ``share`` calls at the same time may spend, and return it.

        The call itself is part of it. Give it back with ``account``. One call alone sets nothing
        aside but itself.
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
        """Count what a call has spent, and give back what was set aside for it."""
        aside = _reserved(given, share)
        self._reserved = Spent(
            calls=self._reserved.calls - aside.calls,
            tokens=self._reserved.tokens - aside.tokens,
            cost=self._reserved.cost - aside.cost,
        )
        self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        """Count what a call has spent that set nothing aside."""
        self.spent += outcome.spent


def for_the_agent(given: Budget) -> Budget | None:
    """Return what the agent of a call may spend: the call itself is paid."""
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
