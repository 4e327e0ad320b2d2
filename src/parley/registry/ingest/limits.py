"""The limits of ingestion, and when a source is visited again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from parley.model.backoff import Backoff, seconds_of
from parley.model.catalog.entries import MAX_NESTING

AGENT_NAME = "parley-registry"
"""The name that a registry has in robots.txt and in ``User-Agent``."""

MINUTE, HOUR, DAY = 60.0, 3600.0, 24 * 3600.0


class IngestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a registry reads at most. Raises ``ValueError`` for a limit that is none.

    Sizes are in bytes (of a body as it is after decompression), times in seconds.
    """

    catalog_bytes: int = 16 * 1024 * 1024
    card_bytes: int = 256 * 1024
    entry_bytes: int = 64 * 1024
    page_bytes: int = 1024 * 1024
    robots_bytes: int = 512 * 1024
    key_bytes: int = 256 * 1024
    attestation_bytes: int = 4 * 1024 * 1024
    entries_per_catalog: int = 10_000
    entries_per_site: int = 100_000
    catalogs_per_site: int = 200
    depth: int = MAX_NESTING
    """How deep catalogs may be nested, by address and inline together."""
    redirects: int = 4
    fetch_seconds: float = 20.0
    connect_seconds: float = 5.0
    visit_seconds: float = 240.0
    """The time of a visit. What is not read by then is read by the next one, which follows soon."""
    lease_seconds: float = 300.0
    """How long a visit is claimed: another process continues that of one that was killed."""
    per_host: int = 2
    """The requests to one host at a time."""
    at_once: int = 32
    """The requests of a registry at a time."""
    refresh_floor: float = 5 * MINUTE
    refresh_default: float = 6 * HOUR
    refresh_ceiling: float = 7 * DAY
    """How soon and how late a source is visited again, whatever its headers say."""
    gone_after: int = 8
    """After how many failures in a row a source is gone, and its entries are withdrawn."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} is more than 0, not {getattr(self, field.name)}")
        if self.lease_seconds <= self.visit_seconds:
            raise ValueError(
                f"lease_seconds ({self.lease_seconds:g}) is longer than visit_seconds "
                f"({self.visit_seconds:g}): a claim must not expire while its visit goes on"
            )
        if not self.refresh_floor <= self.refresh_default <= self.refresh_ceiling:
            raise ValueError("refresh_floor <= refresh_default <= refresh_ceiling does not hold")

    def refresh_after(self, headers: Mapping[str, str]) -> float:
        """Return the seconds until the next visit, by the headers of an answer, within bounds."""
        seconds = freshness(headers)
        if seconds is None:
            seconds = self.refresh_default
        return min(max(seconds, self.refresh_floor), self.refresh_ceiling)

    def retry_after(self, failures: int, wanted: float | None = None) -> float:
        """Return the seconds until the next try, after so many failures in a row.

        ``wanted`` is what the server asked for (``Retry-After``).
        """
        first = min(MINUTE, self.refresh_floor)
        backoff = Backoff(first, self.refresh_ceiling, factor=3.0, jitter=(0.8, 1.2))
        return min(max(backoff.delay(max(failures, 1)), wanted or 0.0), self.refresh_ceiling)


def freshness(headers: Mapping[str, str]) -> float | None:
    """Return for how many seconds an answer is fresh; ``None`` if its headers do not say.

    ``headers`` have names in lower case. What must not be kept is fresh for 0 seconds.
    """
    found: float | None = None
    for directive in headers.get("cache-control", "").lower().split(","):
        name, _, value = directive.strip().partition("=")
        value = value.strip('" ')
        if name in ("no-store", "no-cache"):
            return 0.0
        if name == "max-age" and value.isascii() and value.isdigit():
            found = float(value[:10])
    if found is None:
        return seconds_of(headers.get("expires")) if headers.get("expires") else None
    age = headers.get("age", "").strip()
    return max(0.0, found - (float(age[:10]) if age.isascii() and age.isdigit() else 0.0))
