"""What an agent says that an answer has cost (``docs/extensions/usage.md``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parley.extensions.usage import USAGE
from parley.model.parts import Artifact, Message
from parley.model.struct import A2AStruct
from parley.model.tasks import Task

MOST = 2**53
"""The most that an answer may say of anything: more is taken for no number."""


class Spent(A2AStruct, frozen=True, kw_only=True):
    """What was spent on an answer: calls of other agents, tokens, and what they cost.

    An agent says it in the metadata of an artifact, or of a message that is its answer:
    ``turn.artifact(text, metadata=Usage.says(Spent(tokens=812, cost=0.004)))``.
    """

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            cost=self.cost + other.cost,
        )


def spent_on(answer: Task | Message) -> Spent:
    """Return what an answer says that it has cost, nothing if it does not say.

    It is what another agent says: numbers that are none count as nothing.
    """
    carriers: Iterable[Task | Message | Artifact] = [answer]
    if isinstance(answer, Task):
        said = answer.status.message
        carriers = [answer, *answer.artifacts, *([said] if said is not None else [])]
    total = Spent()
    for carrier in carriers:
        value = (carrier.metadata or {}).get(USAGE)
        if isinstance(value, dict):
            total += Spent(
                calls=int(_number(value.get("calls"))),
                tokens=int(_number(value.get("tokens"))),
                cost=_number(value.get("cost")),
            )
    return total


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= MOST else 0
