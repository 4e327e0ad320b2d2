"""What a server says about when to come again (RFC 9110 §10.2.3)."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds_of(retry_after: str | None, now: datetime | None = None) -> float | None:
    """Return what a ``Retry-After`` header asks for: seconds, or a date that becomes seconds."""
    if retry_after is None:
        return None
    value = retry_after.strip()
    if value.isascii() and value.isdigit():
        return float(value[:10])  # more is for ever, too
    from email.utils import parsedate_to_datetime  # slow to import, seldom needed

    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
