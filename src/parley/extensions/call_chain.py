"""The chain of agents that called each other for a message.

This module reads and writes the chain. ``engine.caller`` checks it, and ``agent.remote`` extends
it. ``docs/reference/extensions/call-chain.md`` describes the extension.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.extensions import CALL_CHAIN, Carrier, Extension
from parley.model.operations import SendMessageRequest
from parley.model.struct import A2AStruct, Timestamp
from parley.model.tasks import Replied

MAX_PATH = 64
"""The maximum number of agents in a path."""

MAX_SPENT = 2**53
"""The maximum of each amount in a budget."""

MAX_ID = 128
"""The maximum number of characters in the id of an agent in a path."""


class ChainBudget(A2AStruct, frozen=True, kw_only=True):
    """The maximum cost of a message, for its agent and all agents called for it.

    ``None`` is unlimited. ``calls`` counts calls of other agents. ``tokens`` and ``cost`` are
    summed from the reports of agents (``parley.extensions.usage.Spent``). The creator of the budget
    chooses the unit of ``cost``.
    """

    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        for name in ("calls", "tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise TypeError(f"{name} of a budget is a whole number, not {value!r}")
        for name in ("calls", "tokens", "cost"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} of a budget is 0 or more, not {value!r}")

    def __bool__(self) -> bool:
        return not (self.calls is None and self.tokens is None and self.cost is None)


class Chain(A2AStruct, frozen=True, kw_only=True):
    """The chain of calls that led to a message.

    ``hops`` is the number of agents that have called each other so far. ``path`` has their opaque
    ids, the first caller first. ``deadline`` is the time after which the answer is useless.
    ``budget`` is the maximum cost of the answer.
    """

    hops: int = 0
    deadline: Timestamp | None = None
    path: tuple[str, ...] = ()
    budget: ChainBudget | None = None


class CallChain(Extension):
    """A message carries the number of agents that called each other, their ids, and a deadline."""

    uri = CALL_CHAIN
    description = "Deadline and hop count of a chain of agents that call each other."

    @classmethod
    def of(cls, carrier: Carrier | Replied) -> Chain | None:
        """Return the chain of a request, if it has one. Raises ``InvalidParamsError``."""
        value = cls.value_in(carrier)
        return None if value is None else cls.read(value)

    @classmethod
    def read(cls, value: object) -> Chain:
        """Return the chain that ``says`` wrote under the URI. Raises ``InvalidParamsError``."""
        if not isinstance(value, dict):
            raise _invalid("", "expected an object with hops, deadline and path")
        return Chain(
            hops=_hops(value.get("hops", 0)),
            deadline=_deadline(value.get("deadline")),
            path=_path(value.get("path", [])),
            budget=_budget(value.get("budget")),
        )

    @classmethod
    def says(cls, data: Chain) -> dict[str, Any]:
        """Return a chain as metadata."""
        value: dict[str, Any] = {"hops": data.hops}
        if data.deadline is not None:
            value["deadline"] = str(data.deadline)
        if data.path:
            value["path"] = list(data.path)
        if data.budget:
            budget = data.budget
            given = {"calls": budget.calls, "tokens": budget.tokens, "cost": budget.cost}
            value["budget"] = {name: each for name, each in given.items() if each is not None}
        return {cls.uri: value}


def with_deadline(request: SendMessageRequest, deadline: Timestamp) -> SendMessageRequest:
    """Return a request whose chain has this deadline, or its own if that is earlier.

    Raises ``InvalidParamsError`` if the request has an invalid chain.
    """
    chain = CallChain.of(request) or Chain()
    if chain.deadline is None or deadline < chain.deadline:
        chain = replace(chain, deadline=deadline)
    return CallChain.put(request, chain)


def _hops(value: object) -> int:
    # A number in metadata may have been converted to a double.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000:
        raise _invalid(".hops", "expected a whole number, 0 or more")
    return value


def _deadline(value: object) -> Timestamp | None:
    if value is None:
        return None
    try:
        return Timestamp.parse(value if isinstance(value, str) else "")
    except ValueError:
        raise _invalid(
            ".deadline", "expected a timestamp such as 2026-01-31T12:00:00.000Z"
        ) from None


def _path(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_PATH:
        raise _invalid(".path", f"expected a list of at most {MAX_PATH} ids")
    for each in value:
        if not isinstance(each, str) or not 0 < len(each) <= MAX_ID:
            raise _invalid(".path", f"expected ids of 1 to {MAX_ID} characters")
    return tuple(value)


def _budget(value: object) -> ChainBudget | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _invalid(".budget", "expected an object with calls, tokens and cost")
    found: dict[str, Any] = {}
    for name in ("calls", "tokens", "cost"):
        given = value.get(name)
        if given is None:
            continue
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not 0 <= given <= MAX_SPENT:
            raise _invalid(f".budget.{name}", "expected a number, 0 or more")
        # A number in metadata may have been converted to a double.
        if name != "cost" and given != int(given):
            raise _invalid(f".budget.{name}", "expected a whole number")
        found[name] = float(given) if name == "cost" else int(given)
    return ChainBudget(**found) if found else None


def _invalid(member: str, description: str) -> InvalidParamsError:
    path = f"metadata.{CALL_CHAIN}{member}"
    return InvalidParamsError(
        f"{path}: {description}", violations=(FieldViolation(path, description),)
    )
