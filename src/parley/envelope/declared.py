"""An author's settings of an agent in the envelope protocol: ``CardDetails(envelope=...)``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal, get_args

from msgspec.structs import replace

from parley.engine.agent_options import AgentRules, WorkGate
from parley.engine.replies import ReplyHandle
from parley.model.errors import OverloadedError
from parley.model.struct import A2AStruct, Timestamp, freeze
from parley.security.limits.declaration import Limit, parse_limits

DataClassification = Literal["public", "internal", "confidential", "restricted"]
"""The audience of a card and results: everyone, authenticated callers, callers with the
permissions, and callers with the permissions whose messages are signed.
"""

CLASSIFICATIONS: tuple[str, ...] = get_args(DataClassification)

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
DAILY = "daily"

HANDLER_TIMEOUT = 30.0
"""The time limit of an operator's handler, in seconds."""

KEYS_VARIABLE = "PARLEY_ENVELOPE_KEYS"
"""The environment variable that names the file with the keys of senders."""

MAX_WINDOWS = 64
MAX_TEXT = 1000

_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00")
_WINDOW = re.compile(
    r"([A-Za-z]{3,}),?\s+(\d\d:\d\d)\s*(?:-|\u2013|to)\s*(\d\d:\d\d)(?:\s+([\w/+-]+))?"
)
_SCOPE = re.compile(r"[!#-\[\]-~]{1,200}")  # RFC 6749, section 3.3


class MaintenanceWindow(A2AStruct, frozen=True, kw_only=True):
    """A time in which new work is rejected, from ``start`` until before ``end``.

    Once: ``start`` and ``end`` are times such as ``2026-12-24T22:00:00Z`` (RFC 3339). Every week on
    a ``day`` (``"sunday"``), or ``"daily"``: they are ``"HH:MM"`` in ``time_zone``, and an ``end``
    that is not after ``start`` is on the next day.
    """

    start: str
    end: str
    day: str = ""
    time_zone: str = "UTC"
    description: str = ""


class DeclaredPerformance(A2AStruct, frozen=True, kw_only=True):
    """The declared performance of a skill. Cards show it.

    ``average_response_time`` is in ms; each process rejects more than ``max_concurrent_requests``
    at once; ``reliability`` is from 0 to 1.
    """

    average_response_time: int | None = None
    max_concurrent_requests: int | None = None
    reliability: float | None = None


class EnvelopeSettings(A2AStruct, frozen=True, kw_only=True):
    """The members of an agent's envelope card, and the limits that are enforced.

    ``required_permissions`` are scopes that every caller needs. ``requests_per_minute`` is for each
    caller, as ``concurrent_connections`` (WebSockets to one process) is. ``schedule`` is text for
    people. ``performance`` is by the id of a skill. ``signed``: every message must be signed.
    ``signature_window`` is how many seconds the time of a signature may differ from the server's.
    """

    agent_type: str = "agent"
    vendor: str = ""
    license: str = ""
    tags: tuple[str, ...] = ()
    required_permissions: tuple[str, ...] = ()
    data_classification: DataClassification = "public"
    requests_per_minute: int | None = None
    concurrent_connections: int = 16
    schedule: str = "24/7"
    maintenance_windows: tuple[MaintenanceWindow, ...] = ()
    performance: dict[str, DeclaredPerformance] = {}
    signed: bool = False
    signature_window: float = 300.0

    def __post_init__(self) -> None:
        freeze(self, "tags", "required_permissions", "maintenance_windows")

    @property
    def needs_signatures(self) -> bool:
        """Return whether every message must be signed."""
        return self.signed or self.data_classification == "restricted"

    @property
    def needs_identity(self) -> bool:
        """Return whether callers must authenticate."""
        return self.data_classification != "public" or bool(self.required_permissions)

    @property
    def rules(self) -> AgentRules:
        """The rules of the agent on all bindings."""
        limits: tuple[Limit, ...] = ()
        if self.requests_per_minute is not None:
            [rate] = parse_limits([f"{self.requests_per_minute}/minute per caller"])
            limits = (replace(rate, name="envelope-minute"),)
        return AgentRules(
            permissions=self.required_permissions,
            needs_identity=self.needs_identity,
            limits=limits,
            gates=self._gates,
            agent_type="" if self.agent_type == "agent" else self.agent_type,
        )

    def _gates(self, now: Callable[[], int]) -> tuple[WorkGate, ...]:
        limited = {
            skill: each
            for skill, each in self.performance.items()
            if each.max_concurrent_requests is not None
        }
        gates: list[WorkGate] = [SkillSlots(limited)] if limited else []
        if self.maintenance_windows:
            gates.insert(0, MaintenanceGate(tuple(self.maintenance_windows), now))
        return tuple(gates)

    def check(self) -> None:
        """Raise ``TypeError`` or ``ValueError`` with the valid form."""
        for name in ("agent_type", "vendor", "license", "schedule"):
            _check_text(name, getattr(self, name))
        if not self.agent_type:
            raise ValueError("agent_type of envelope is not empty: it is 'agent' by default")
        _check_texts("tags", self.tags)
        _check_texts("required_permissions", self.required_permissions)
        for scope in self.required_permissions:
            if not _SCOPE.fullmatch(scope):
                raise ValueError(
                    "required_permissions of envelope are scopes of 1 to 200 characters without "
                    f"spaces, quotes and backslashes, not {scope!r}"
                )
        if self.data_classification not in CLASSIFICATIONS:
            raise ValueError(
                f"data_classification of envelope must be one of {', '.join(CLASSIFICATIONS)}, not "
                f"{self.data_classification!r}"
            )
        if self.data_classification == "confidential" and not self.required_permissions:
            raise ValueError(
                "data_classification 'confidential' is for callers with the required permissions: "
                "give required_permissions=(...), or 'internal' for all authenticated callers"
            )
        if self.requests_per_minute is not None:
            _check_number("requests_per_minute", self.requests_per_minute, least=1)
        _check_number("concurrent_connections", self.concurrent_connections, least=1)
        window: Any = self.signature_window
        is_number = isinstance(window, int | float) and not isinstance(window, bool)
        if not is_number or not 1 <= window <= 3600:
            raise ValueError(
                "signature_window of envelope is 1 to 3600 seconds (300 by default), not "
                f"{window!r}"
            )
        if not isinstance(self.signed, bool):
            raise TypeError(f"signed of envelope is True or False, not {self.signed!r}")
        _check_windows(self.maintenance_windows)
        if not isinstance(self.performance, dict):
            raise TypeError("performance of envelope is a dict of skill ids to DeclaredPerformance")
        for skill, performance in self.performance.items():
            _check_performance(skill, performance)

    def check_skills(self, skills: Collection[str]) -> None:
        """Raise ``ValueError`` for performance of an unknown skill."""
        if unknown := [name for name in self.performance if name not in skills]:
            raise ValueError(
                f"performance of envelope names the skill {unknown[0]!r}, which the agent does not "
                f"have; its skills are {', '.join(skills)}"
            )


def clock_of(text: str) -> time | None:
    """Return the time of ``HH:MM``, ``None`` for ``24:00``. Raises ``ValueError``."""
    if not isinstance(text, str) or not (match := _CLOCK.fullmatch(text)):
        raise ValueError(f"a time of day is HH:MM, such as 02:30, not {text!r:.60}")
    return None if text == "24:00" else time(int(match[1]), int(match[2]))


def window_of(text: str) -> MaintenanceWindow:
    """Return the window of a text such as ``Sunday 02:00-04:00 UTC``. Raises ``ValueError``."""
    match = _WINDOW.fullmatch(text.strip()) if len(text) <= MAX_TEXT else None
    if match is None:
        raise ValueError(
            "a maintenance window in words is a day (or daily), two times and a time zone, such "
            f"as 'Sunday 02:00-04:00 UTC', not {text!r:.60}"
        )
    day, start, end, zone = match.groups()
    days = [each for each in (*DAYS, DAILY) if each.startswith(day.lower().rstrip("s"))]
    window = MaintenanceWindow(
        day=days[0] if days else day, start=start, end=end, time_zone=zone or "UTC"
    )
    check_window(window)
    return window


def moment_of(text: str) -> Timestamp:
    """Return the moment of a text of RFC 3339. Raises ``ValueError``."""
    try:
        return Timestamp.parse(text)
    except (TypeError, ValueError):
        raise ValueError(
            "a moment must be an RFC 3339 time with its offset, such as 2026-12-24T22:00:00Z, not "
            f"{text!r:.60}"
        ) from None


def _check_windows(windows: tuple[Any, ...]) -> None:
    if len(windows) > MAX_WINDOWS:
        raise ValueError(
            f"maintenance_windows of envelope are at most {MAX_WINDOWS}, not {len(windows)}"
        )
    for window in windows:
        if not isinstance(window, MaintenanceWindow):
            raise TypeError(
                f"maintenance_windows of envelope are MaintenanceWindow, not {window!r:.100}"
            )
        try:
            check_window(window)
        except ValueError as error:
            raise ValueError(f"the maintenance window {window!r} is invalid: {error}") from None


def check_window(window: MaintenanceWindow) -> None:
    """Raise ``ValueError`` for a window that never opens, or whose time zone is unknown."""
    from zoneinfo import ZoneInfo

    _check_text("description of a maintenance window", window.description)
    try:
        ZoneInfo(window.time_zone)
    except (KeyError, ValueError, TypeError, OSError):  # KeyError: ZoneInfoNotFoundError
        raise ValueError(
            f"time_zone is a name of the tz database, such as Europe/Berlin, not "
            f"{window.time_zone!r:.60}"
        ) from None
    if not window.day:
        if window.time_zone != "UTC":
            raise ValueError(
                "start and end of a single window have their own offset: leave time_zone out"
            )
        if moment_of(window.end) <= moment_of(window.start):
            raise ValueError("its end is after its start")
        return
    if window.day not in (*DAYS, DAILY):
        raise ValueError(f"day is {', '.join(DAYS)} or {DAILY}, not {window.day!r:.60}")
    start = clock_of(window.start)
    if start is None or window.start == window.end:
        raise ValueError("start is 00:00 to 23:59, and end is another time (24:00 for midnight)")
    clock_of(window.end)


def _check_performance(skill: str, performance: DeclaredPerformance) -> None:
    what = f"performance of {skill!r}"
    if not isinstance(performance, DeclaredPerformance):
        raise TypeError(f"{what} is a DeclaredPerformance, not {performance!r:.100}")
    for name, value, least in (
        ("average_response_time (ms)", performance.average_response_time, 0),
        ("max_concurrent_requests", performance.max_concurrent_requests, 1),
    ):
        if value is not None:
            _check_number(f"{name} in the {what}", value, least=least)
    share: Any = performance.reliability
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    if share is not None and not (is_number and 0 <= share <= 1):  # rejects NaN as well
        raise ValueError(f"reliability in the {what} is a number from 0 to 1, not {share!r}")


def _check_number(name: str, value: Any, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise ValueError(f"{name} of envelope is a whole number from {least} on, not {value!r}")


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(f"{name} of envelope is text of at most {MAX_TEXT} characters")


def _check_texts(name: str, values: tuple[Any, ...]) -> None:
    if len(values) > 100:
        raise ValueError(f"{name} of envelope are at most 100 texts, not {len(values)}")
    for value in values:
        _check_text(name, value)


_MOST_JOINED = 64
"""The most consecutive windows that are treated as one."""


class MaintenanceGate:
    """The maintenance windows of an agent. Times are in ms since 1970; ``now`` is the store's."""

    def __init__(self, windows: tuple[MaintenanceWindow, ...], now: Callable[[], int]) -> None:
        self._windows = windows
        self._now = now

    def check(self, skill: str = "") -> None:
        """Reject new work within a window. Raises ``UnderMaintenance``, with the time to wait."""
        now = self._now()
        end = self.end_at(now)
        if end is None:
            return
        from parley.envelope.messages import UnderMaintenance

        until = f"{datetime.fromtimestamp(end / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        raise UnderMaintenance(
            f"the agent is under maintenance and takes no new work before {until}; what runs goes "
            "on, and can be read and answered",
            retry_after=(end - now) / 1000,
            metadata={"until": until},
        )

    def hold(self, skill: str, handle: ReplyHandle) -> None:
        """Count nothing: a window rejects all new work."""

    def end_at(self, at: int) -> int | None:
        """Return the end of the window at a time, ``None`` outside of all windows.

        Windows that overlap, or follow each other directly, end together.
        """
        end = None
        for _ in range(_MOST_JOINED):
            ends = [
                until
                for window in self._windows
                for start, until in _occurrences(window, at)
                if start <= at < until
            ]
            if not ends:
                break
            at = end = max(ends)
        return end


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


class SkillSlots:
    """Slots of the skills with a declared limit of concurrent requests.

    A message holds a slot from its admission until the reply of its turn: the task has ended, or
    asks for something. A turn that another process runs has no slot here.
    """

    def __init__(self, performance: dict[str, DeclaredPerformance]) -> None:
        self._performance = performance
        self._taken = dict.fromkeys(performance, 0)

    def check(self, skill: str) -> None:
        """Reject a message if all slots of its skill are in use. Raises ``OverloadedError``."""
        declared = self._performance.get(skill)
        if declared is None or declared.max_concurrent_requests is None:
            return
        if self._taken[skill] >= declared.max_concurrent_requests:
            raise OverloadedError(
                f"the skill {skill!r} serves {declared.max_concurrent_requests} "
                f"request{'s' * (declared.max_concurrent_requests > 1)} at once, and has them; "
                "send this again later",
                retry_after=max(1, math.ceil((declared.average_response_time or 0) / 1000)),
            )

    def hold(self, skill: str, handle: ReplyHandle) -> None:
        """Hold a slot until a message has its reply."""
        if skill not in self._taken or handle.is_settled:
            return
        self._taken[skill] += 1

        def release() -> None:
            self._taken[skill] -= 1

        handle.on_settled(release)
