"""What a caller learns of limits: the error, and the fields of ``RateLimit``.

The fields are those of draft-ietf-httpapi-ratelimit-headers: ``RateLimit-Policy`` has the policies,
``RateLimit`` what remains of them and in how many seconds more is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from parley.model.errors import InvalidParamsError, TooManyRequestsError

QUOTA_FAILURE = "type.googleapis.com/google.rpc.QuotaFailure"

Fields = list[tuple[str, str]]
"""Names, in lower case, and values of headers or metadata."""


class Standing(NamedTuple):
    """What a caller has of one limit: ``reset`` is in seconds, ``period`` too (0 for streams)."""

    name: str
    amount: int
    period: int
    remaining: int
    reset: float


class LimitExceeded(TooManyRequestsError):
    """A limit is reached. ``standings`` are those of the request's limits, as far as is known."""

    standings: Sequence[Standing] = ()


class MessageTooLarge(InvalidParamsError):
    """A message is larger than the agent takes."""

    http_status = 413


def exceeded(text: str, standing: Standing, *, what: str = "") -> LimitExceeded:
    """Return the error of a limit that was declared as ``text``."""
    seconds = max(1, math.ceil(standing.reset))
    soon = f"wait {seconds} second{'' if seconds == 1 else 's'}"
    message = f"the limit of {text} is reached{what}; {soon} and send this again"
    error = LimitExceeded(
        message,
        metadata={"limit": text, "policy": standing.name, "remaining": str(standing.remaining)},
        details=(
            {
                "@type": QUOTA_FAILURE,
                "violations": [{"subject": standing.name, "description": f"limit: {text}"}],
            },
        ),
        retry_after=seconds,
    )
    error.standings = (standing,)
    return error


def fields_of(standings: Iterable[Standing]) -> Fields:
    """Return ``RateLimit-Policy`` and ``RateLimit``, or nothing without a limit."""
    policies, states = [], []
    for each in standings:
        window = f";w={each.period}" if each.period else ""
        policies.append(f'"{each.name}";q={each.amount}{window}')
        reset = f";t={max(0, math.ceil(each.reset))}" if each.period else ""
        states.append(f'"{each.name}";r={max(0, each.remaining)}{reset}')
    if not policies:
        return []
    return [("ratelimit-policy", ", ".join(policies)), ("ratelimit", ", ".join(states))]
