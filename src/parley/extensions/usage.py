"""The method ``usage/report`` (``docs/extensions/usage.md``)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from parley.model.errors import FieldViolation, InvalidParamsError, UnsupportedOperationError
from parley.model.extensions import Extension, method
from parley.model.service import A2AService, CallContext
from parley.model.struct import A2AStruct, Int32, freeze

USAGE = "urn:parley:usage:v1"

DEFAULT_DAYS = 30
MOST_DAYS = 400
MOST_LINES = 5000


class UsageRequest(A2AStruct, frozen=True, kw_only=True):
    """A request for what the caller has used: of the last ``days`` (30), today among them."""

    tenant: str = ""
    days: Int32 | None = None


class UsageOfDay(A2AStruct, frozen=True, kw_only=True):
    """What a caller used of a skill on a day of UTC (``2026-11-23``).

    Requests and refusals of other operations than messages have no ``skill``.
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
    """A limit as it was declared, and what of it is left for the caller.

    Without ``remaining`` that is not known here. ``reset_seconds`` is when more is free.
    """

    limit: str
    name: str = ""
    amount: int = 0
    remaining: int | None = None
    reset_seconds: float | None = None


class UsageResponse(A2AStruct, frozen=True, kw_only=True):
    """The caller's usage, the latest days first, and the limits that hold for it."""

    usage: tuple[UsageOfDay, ...]
    limits: tuple[LimitState, ...]

    def __post_init__(self) -> None:
        freeze(self, "usage")
        freeze(self, "limits")


@runtime_checkable
class ReportsUsage(Protocol):
    """A service that knows what its callers use."""

    async def usage_of(self, context: CallContext, days: int) -> UsageResponse:
        """Return the usage of a caller, and what it may use."""
        ...


async def report(service: A2AService, request: UsageRequest, context: CallContext) -> UsageResponse:
    """Answer ``usage/report``: callers see their own usage, anonymous ones that of all anonymous.

    Raises ``InvalidParamsError``, ``UnsupportedOperationError``.
    """
    days = request.days or DEFAULT_DAYS
    if not 1 <= days <= MOST_DAYS:
        description = f"days is between 1 and {MOST_DAYS}, or left out for {DEFAULT_DAYS}"
        raise InvalidParamsError(description, violations=(FieldViolation("days", description),))
    if not isinstance(service, ReportsUsage):
        raise UnsupportedOperationError("nothing counts usage here")
    return await service.usage_of(context, days)


REPORT = method(
    USAGE, "usage/report", UsageRequest, UsageResponse, report, path="/usage:report", safe=True
)


class Usage(Extension):
    """Callers read what they used, and what they may still use: ``usage/report``."""

    uri = USAGE
    description = "Reports the caller's own usage by day and skill, and its limits: usage/report."
    methods = (REPORT,)
