"""Budgets of tokens, and prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.agent.turn import Turn
from parley.extensions.call_chain import ChainBudget
from parley.extensions.usage import Spent
from parley.llm.conversation import estimated, without_files
from parley.llm.model import ModelReply, ModelRequest, ModelUsage

CALLERS = "urn:parley:llm:callers"
"""The context that stores the token counts of callers."""

DAY_MS = 86_400_000

MOST_COUNTED = 64
"""For how many tasks a count remembers the last counted reply."""

SMALLEST_REPLY = 16
"""With fewer tokens left than this, no request is made: no useful answer is that short."""


class RunStopped(Exception):
    """A run ended before its answer: a budget is exhausted, or the model reached no answer.

    The text is for the caller. ``metadata`` has the usage of the run.
    """

    def __init__(self, message: str) -> None:
        self.metadata: dict[str, Any] = {}
        super().__init__(message)


class ModelRefused(RunStopped):
    """The model refuses to answer, or its content filter stopped the answer."""


class BudgetExceeded(RunStopped):
    """The token budget of a run is exhausted."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a model: for a million tokens of requests, and of replies."""

    input: float
    output: float

    def of(self, usage: ModelUsage) -> float:
        """Return the price of some usage."""
        return (self.input * usage.input_tokens + self.output * usage.output_tokens) / 1_000_000


class TokenBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of tokens: ``None`` is no limit.

    ``turn`` is for one task, ``context`` for all tasks of a context, ``caller_per_day`` for all
    tasks of a caller in a UTC day. They are checked before each request, and a reply gets at most
    the remaining tokens. Concurrent tasks may together exceed the last two.
    """

    turn: int | None = None
    context: int | None = None
    caller_per_day: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(
                    f"{name} of a token budget must be 1 or more, or None, not {value!r}"
                )


class Tally(msgspec.Struct, array_like=True):
    """Counted tokens: of a ``day``, 0 for all days.

    ``last`` has the last counted reply of each task, the newest last: after a crash between the
    count and the log, a task would count its last reply again.
    """

    day: int = 0
    used: int = 0
    last: dict[str, str] = {}

    def counted(self, task_id: str, reply_id: str, tokens: int) -> Tally:
        """Return the tally with a reply added, unless it was counted before."""
        if reply_id and self.last.get(task_id) == reply_id:
            return self
        last = {each: reply for each, reply in self.last.items() if each != task_id}
        last[task_id] = reply_id
        while len(last) > MOST_COUNTED:
            del last[next(iter(last))]
        return Tally(self.day, self.used + tokens, last)


class TokenSpending:
    """The tokens that a run may still use; counts its usage."""

    def __init__(self, turn: Turn, budget: TokenBudget, key: str) -> None:
        self._turn = turn
        self._budget = budget
        self._key = key

    async def left(self, request: ModelRequest, total: Spent, last: int) -> int | None:
        """Return how many tokens a reply may have; ``last`` is the size of the previous request.

        Raises ``BudgetExceeded``.
        """
        turn, budget, callers = self._turn, self._budget, self._turn.budget
        limits: list[tuple[str, int, int]] = []
        if budget.turn is not None:
            limits.append(("of one task", budget.turn, total.tokens))
        if budget.context is not None:
            tally = _tally(await turn.recall(f"{self._key}:tokens"))
            limits.append(("of this conversation", budget.context, tally.used))
        if budget.caller_per_day is not None:
            used = (await self._of_caller()).used
            limits.append(("of a caller in a day", budget.caller_per_day, used))
        if callers is not None and callers.tokens is not None:
            limits.append(("that the caller set", callers.tokens, total.tokens))
        if callers is not None and callers.cost is not None and total.cost >= callers.cost:
            raise BudgetExceeded(
                f"The budget set by the caller is exhausted: {total.cost:g} of {callers.cost:g}."
            )
        said = [without_files(message.get("content")) for message in request.messages]
        asked, left = max(last, estimated([said, *request.tools])), None
        for what, most, used in limits:
            room = most - used - asked
            if room < SMALLEST_REPLY:
                raise BudgetExceeded(
                    f"The token budget {what} is exhausted: {used:,} of {most:,} are used, and the "
                    f"next request needs about {asked:,}."
                )
            left = room if left is None else min(left, room)
        return left

    def for_others(self, total: Spent) -> ChainBudget | None:
        """Return the budget for another agent: the rest of the task's budget, ``None`` for no
        limit.
        """
        budget = self._turn.budget or ChainBudget()
        tokens = [each for each in (budget.tokens, self._budget.turn) if each is not None]
        left = ChainBudget(
            calls=budget.calls,
            tokens=max(0, min(tokens) - total.tokens) if tokens else None,
            cost=None if budget.cost is None else max(0.0, budget.cost - total.cost),
        )
        return left or None

    async def count(self, number: int, reply: ModelReply) -> None:
        """Count the usage of a request, once in the life of the task."""
        turn, key = self._turn, f"{self._key}:count:{number}"
        if self._budget.context is not None:
            await turn.step(key, self._count_context, reply)
        if self._budget.caller_per_day is not None:
            await turn.step(f"{key}:caller", self._count_caller, reply)

    def _added(self, tally: Tally, reply: ModelReply) -> Tally:
        return tally.counted(self._turn.task_id, reply.id, reply.usage.tokens)

    async def _count_context(self, reply: ModelReply) -> None:
        def add(value: Any) -> Any:
            return msgspec.to_builtins(self._added(_tally(value), reply))

        await self._turn.update(f"{self._key}:tokens", add)

    # -- callers: a value of the agent for each, beside its contexts --------------------------

    @property
    def _today(self) -> int:
        return self._turn._attempt.runner.store.now() // DAY_MS

    async def _of_caller(self) -> Tally:
        runner = self._turn._attempt.runner
        return self._read(await runner.store.get_value(runner.scope, CALLERS, self._key))

    def _read(self, found: bytes | None) -> Tally:
        tally = Tally() if found is None else msgspec.json.decode(found, type=Tally)
        return tally if tally.day == self._today else Tally(self._today, 0, tally.last)

    async def _count_caller(self, reply: ModelReply) -> None:
        runner = self._turn._attempt.runner
        while True:
            found = await runner.store.get_value(runner.scope, CALLERS, self._key)
            value = msgspec.json.encode(self._added(self._read(found), reply))
            if await runner.store.compare_and_set(runner.scope, CALLERS, self._key, found, value):
                return


def _tally(value: Any) -> Tally:
    """Return the stored tally of a context; older versions stored the number alone."""
    if value is None or isinstance(value, int):
        return Tally(0, value or 0)
    return msgspec.convert(value, Tally)


def priced(usage: ModelUsage, model: str, prices: Mapping[str, Price]) -> ModelUsage:
    """Return usage with its cost if the price of the model is known."""
    price = prices.get(model)
    if price is None or usage.cost:
        return usage
    return msgspec.structs.replace(usage, cost=price.of(usage))
