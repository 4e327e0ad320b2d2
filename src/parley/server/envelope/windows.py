"""Maintenance windows: when an agent takes no new work, on any binding, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta

from parley.model.envelope.declared import (
    DAILY,
    DAYS,
    EnvelopeSettings,
    MaintenanceWindow,
    clock_of,
    moment_of,
)

_MOST_JOINED = 64
"""How many windows, one after another, count as one."""


class Windows:
    """The maintenance windows of an agent. Times are in ms since 1970; ``now`` is the store's."""

    def __init__(self, windows: tuple[MaintenanceWindow, ...], now: Callable[[], int]) -> None:
        self._windows = windows
        self._now = now

    @classmethod
    def of(cls, settings: EnvelopeSettings | None, now: Callable[[], int]) -> Windows | None:
        """Return the windows of an agent, ``None`` without any."""
        if settings is None or not settings.maintenance_windows:
            return None
        return cls(tuple(settings.maintenance_windows), now)

    def check(self) -> None:
        """Refuse new work within a window. Raises ``UnderMaintenance``, with the time to wait."""
        now = self._now()
        end = self.end_at(now)
        if end is None:
            return
        from parley.wire.envelope.errors import UnderMaintenance

        until = datetime.fromtimestamp(end / 1000, UTC).isoformat(timespec="seconds")
        raise UnderMaintenance(
            "the agent is under maintenance and takes no new work before "
            f"{until.replace('+00:00', 'Z')}; what runs goes on, and can be read and answered",
            retry_after=(end - now) / 1000,
            metadata={"until": until.replace("+00:00", "Z")},
        )

    def end_at(self, at: int) -> int | None:
        """Return when the window of a time ends, ``None`` outside of all.

        Windows that overlap, or follow one another at once, end together.
        """
        end = None
        for _ in range(_MOST_JOINED):
            ends = [until for window in self._windows for until in _ends(window, at)]
            if not ends:
                break
            at = end = max(ends)
        return end


def _ends(window: MaintenanceWindow, at: int) -> Iterator[int]:
    """Yield the ends of the occurrences of a window that a time is in."""
    for start, end in _occurrences(window, at):
        if start <= at < end:
            yield end


def _occurrences(window: MaintenanceWindow, at: int) -> Iterator[tuple[int, int]]:
    if not window.day:
        yield _ms(moment_of(window.start)), _ms(moment_of(window.end))
        return
    from zoneinfo import ZoneInfo

    zone = ZoneInfo(window.time_zone)
    today = datetime.fromtimestamp(at / 1000, zone).date()
    start, end = clock_of(window.start), clock_of(window.end)
    assert start is not None
    over_midnight = end is None or end <= start
    for day in (today - timedelta(days=1), today):
        if window.day in (DAILY, DAYS[day.weekday()]):
            last = day + timedelta(days=1) if over_midnight else day
            # Where a clock shows a time twice, the window is from the first to the second.
            yield _ms(_at(day, start, zone)), _ms(_at(last, end or time(), zone).replace(fold=1))


def _at(day: date, clock: time, zone: object) -> datetime:
    return datetime.combine(day, clock, zone)  # type: ignore[arg-type]


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
