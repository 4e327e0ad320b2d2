"""The report of a caller's usage and limits."""

from __future__ import annotations

from datetime import UTC, datetime

from parley.engine.turn.meter import billed
from parley.extensions.usage import MOST_LINES, LimitState, UsageOfDay, UsageResponse
from parley.model.errors import UnsupportedOperationError
from parley.model.service import CallContext
from parley.security.rates.limit import DAY_MS, SizeLimit
from parley.server.limits.rates import AgentLimits
from parley.store.protocols.tables import UsageQuery


async def usage_report(
    agent: str, limits: AgentLimits | None, context: CallContext, days: int, now: int
) -> UsageResponse:
    """Return what a caller used of an agent in the last days, and its limits.

    Raises ``UnsupportedOperationError`` if nothing is counted, and ``StoreError``.
    """
    if limits is None or limits.usage is None:
        raise UnsupportedOperationError("nothing counts usage here")
    today = now // DAY_MS
    query = UsageQuery(
        since=today - days + 1,
        until=today,
        agent=agent,
        tenant=context.tenant,
        caller=billed(context.caller),
        limit=MOST_LINES,
    )
    rows = await limits.usage.read(query)
    return UsageResponse(
        usage=tuple(
            [
                UsageOfDay(
                    day=day_name(row.day),
                    skill=row.skill,
                    requests=row.requests,
                    refusals=row.refusals,
                    messages=row.messages,
                    tasks=row.tasks,
                    output_bytes=row.output_bytes,
                    run_seconds=row.run_ms / 1000,
                )
                for row in rows[:MOST_LINES]
            ]
        ),
        limits=tuple(
            [
                LimitState(
                    limit=limit.text,
                    name="" if isinstance(limit, SizeLimit) else limit.name,
                    amount=limit.amount,
                    remaining=remaining,
                    reset_seconds=reset,
                )
                for limit, remaining, reset in await limits.report(context)
            ]
        ),
    )


def day_name(day: int) -> str:
    """Return the date of a day, such as ``2026-11-23``."""
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
