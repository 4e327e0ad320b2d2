"""Usage: ``usage/report``, the cost of an answer, and the progress of a run of a model.

See ``docs/reference/extensions/usage.md`` and ``docs/reference/extensions/run-progress.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parley.model.errors import FieldViolation, InvalidParamsError, UnsupportedOperationError
from parley.model.extensions import Extension, method
from parley.model.parts import Artifact, Message
from parley.model.service import A2AService, CallContext
from parley.model.struct import A2AStruct, Int32, freeze
from parley.model.tasks import Replied, Task, TaskStatusUpdateEvent, reply_of

USAGE = "urn:parley:usage:v1"

DEFAULT_DAYS = 30
MOST_DAYS = 400
MOST_LINES = 5000


class UsageRequest(A2AStruct, frozen=True, kw_only=True):
    """A request for the caller's usage of the last ``days`` (30), including today."""

    tenant: str = ""
    days: Int32 | None = None


class UsageOfDay(A2AStruct, frozen=True, kw_only=True):
    """A caller's usage of a skill on a day of UTC (``2026-11-23``).

    Rows for requests and rejections of other operations than messages have no ``skill``.
    """

    day: str
    skill: str = ""
    requests: int = 0
    refusals: int = 0
    messages: int = 0
    tasks: int = 0
    output_bytes: int = 0
    run_seconds: float = 0.0


class LimitState(A2AStruct, frozen=True, kw_only=True):
    """A limit as declared, and the amount that remains for the caller.

    ``remaining`` is unset if it is unknown. ``reset_seconds`` is the time until more is free.
    """

    limit: str
    name: str = ""
    amount: int = 0
    remaining: int | None = None
    reset_seconds: float | None = None


class UsageResponse(A2AStruct, frozen=True, kw_only=True):
    """The caller's usage, the latest days first, and the limits that apply to it."""

    usage: tuple[UsageOfDay, ...]
    limits: tuple[LimitState, ...]

    def __post_init__(self) -> None:
        freeze(self, "usage")
        freeze(self, "limits")


async def report(service: A2AService, request: UsageRequest, context: CallContext) -> UsageResponse:
    """Answer ``usage/report``: a caller sees its own usage; anonymous callers see their sum.

    Raises ``InvalidParamsError``, ``UnsupportedOperationError``.
    """
    days = request.days or DEFAULT_DAYS
    if not 1 <= days <= MOST_DAYS:
        description = f"days is between 1 and {MOST_DAYS}, or left out for {DEFAULT_DAYS}"
        raise InvalidParamsError(description, violations=(FieldViolation("days", description),))
    usage_of = getattr(service, "usage_of", None)  # of a local agent's service
    if usage_of is None:
        raise UnsupportedOperationError("this server does not count usage")
    used: UsageResponse = await usage_of(context, days)
    return used


REPORT = method(
    USAGE, "usage/report", UsageRequest, UsageResponse, report, path="/usage:report", safe=True
)


class Usage(Extension):
    """Callers read their usage, and their limits: ``usage/report``."""

    uri = USAGE
    description = "Reports the caller's own usage by day and skill, and its limits: usage/report."
    methods = (REPORT,)


MAX_SPENT = 2**53
"""The maximum of each amount in an answer; larger numbers are ignored."""


class Spent(A2AStruct, frozen=True, kw_only=True):
    """The cost of an answer: calls of other agents, tokens, and their price.

    An agent states it in the metadata of an artifact, or of a message that is its answer:
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


def spent_on(answer: Task | Message | Replied) -> Spent:
    """Return the cost that an answer states, zero if it states none.

    The numbers come from another agent; invalid numbers count as zero.
    """
    answer = reply_of(answer)
    carriers: Iterable[Task | Message | Artifact] = [answer]
    if isinstance(answer, Task):
        said = answer.status.message
        carriers = [answer, *answer.artifacts, *([said] if said is not None else [])]
    total = Spent()
    for carrier in carriers:
        value = carrier.metadata and carrier.metadata.get(USAGE)
        if isinstance(value, dict):
            total += Spent(
                calls=int(_number(value.get("calls"))),
                tokens=int(_number(value.get("tokens"))),
                cost=_number(value.get("cost")),
            )
    return total


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= MAX_SPENT else 0


RUN_PROGRESS = "urn:parley:run-progress:v1"
"""The metadata key of the progress of a run in status updates."""


class RunProgress(Extension):
    """Status updates carry the tool calls and the thinking of a model.

    Agents of ``parley.llm`` and of frameworks declare it automatically. It needs no activation.
    """

    uri = RUN_PROGRESS
    description = (
        "Status updates have the tool calls and the thinking of a run in their metadata; it is "
        "always sent, and may be ignored."
    )


def run_progress(event: TaskStatusUpdateEvent) -> dict[str, Any] | None:
    """Return the run progress in a status update, ``None`` if it has none."""
    said = (event.metadata or {}).get(RUN_PROGRESS)
    return said if isinstance(said, dict) and isinstance(said.get("kind"), str) else None
