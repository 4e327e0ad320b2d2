"""The ``Retry-After`` header (RFC 9110 §10.2.3)."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds_of(retry_after: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds of a ``Retry-After`` header, which may be a date."""
    if retry_after is None:
        return None
    value = retry_after.strip()
    if value.isascii() and value.isdigit():
        return float(value[:10])  # longer numbers mean for ever, too
    from email.utils import parsedate_to_datetime  # slow to import, rarely needed

    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
