"""What is measured of messages: the performance of each skill, counters, and a log line for each.

Nothing of a message's contents is kept or logged.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from parley.envelope.messages import Envelope, MessageType, RequestPayload, Status

log = logging.getLogger("parley.envelope.messages")

WINDOW_SECONDS = 900.0
MAX_SAMPLES = 512
"""How many answers of one skill are remembered: the latest."""

MAX_SKILLS = 1_000
MAX_KINDS = 200
OTHERS = "(others)"

_FAULTS = frozenset({"INTERNAL_ERROR", "OVERLOADED", "INVALID_AGENT_RESPONSE"})
"""Errors that are not the caller's: they count against the reliability of a skill."""

_REFUSALS = frozenset(
    {
        "MAINTENANCE",
        "MESSAGE_OUTDATED",
        "MESSAGE_REPLAYED",
        "PERMISSION_DENIED",
        "SIGNATURE_INVALID",
        "SIGNATURE_REQUIRED",
        "SOURCE_MISMATCH",
        "TARGET_NOT_FOUND",
        "TOO_MANY_REQUESTS",
        "UNAUTHENTICATED",
    }
)
"""Errors of requests that no skill has seen: they say nothing of its performance. Else whoever may
not call an agent could make it look fast."""


class SkillPerformance(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was measured of a skill in the last ``window`` seconds: times are in ms.

    ``reliability`` is the part of requests that did not fail by the fault of the agent or its
    server. With no answer in the window it is ``None``, as the times are.
    """

    average_response_time: int | None = None
    p95_response_time: int | None = None
    reliability: float | None = None
    requests: int = 0
    in_flight: int = 0
    window: int = round(WINDOW_SECONDS)


class PerformanceSource(Protocol):
    """Knows what was measured, for cards."""

    def measured(self, agent: str, skill: str) -> SkillPerformance:
        """Return what was measured of a skill of the agent with this key."""
        ...


class EnvelopeCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a server counted since its start. ``by_type`` and ``by_status`` count messages that came
    and answers that went; ``slowest_ms`` is the longest answer.
    """

    messages: int = 0
    answers: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    in_flight: int = 0
    retries: int = 0
    heartbeats: int = 0
    slowest_ms: int = 0
    by_type: Mapping[str, int] = {}
    by_status: Mapping[str, int] = {}
    by_error: Mapping[str, int] = {}


class _Window:
    """The answers of one skill."""

    __slots__ = ("answers", "in_flight")

    def __init__(self) -> None:
        self.answers: deque[tuple[float, float, bool]] = deque(maxlen=MAX_SAMPLES)
        self.in_flight = 0


class Measurement:
    """One message under way. ``end`` is called once; calling it again changes nothing."""

    __slots__ = ("_began", "_end", "_is_over", "agent", "is_skill", "request")

    def __init__(
        self,
        end: Callable[[Measurement, float, str, str, int], None],
        agent: str,
        request: Envelope,
        *,
        is_skill: bool,
    ) -> None:
        self._end = end
        self._is_over = False
        self._began = time.perf_counter()
        self.agent = agent
        self.request = request
        self.is_skill = is_skill

    @property
    def skill(self) -> str:
        """The action of a REQUEST, empty for other messages."""
        payload = self.request.payload
        return payload.action if isinstance(payload, RequestPayload) else ""

    def end(self, status: str = Status.SUCCESS, *, error: str = "", size: int = 0) -> None:
        """Note the last answer: its status, its error code, and the bytes of all answers."""
        if not self._is_over:
            self._is_over = True
            self._end(self, time.perf_counter() - self._began, status, error, size)


class EnvelopeStatistics:
    """Counts messages, measures skills, and logs a line for each message.

    Memory is bounded: the skills that were asked for longest ago are forgotten first, and kinds
    beyond a number count as ``(others)``.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: OrderedDict[tuple[str, str], _Window] = OrderedDict()
        self._types: Counter[str] = Counter()
        self._statuses: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._messages = self._answers = self._bytes_in = self._bytes_out = 0
        self._in_flight = self._retries = self._heartbeats = 0
        self._slowest = 0.0

    def begin(
        self, message: Envelope, *, agent: str, size: int = 0, is_skill: bool = False
    ) -> Measurement:
        """Note a message that has arrived; ``is_skill``: its action is a skill of the agent."""
        self._messages += 1
        self._bytes_in += size
        _count(self._types, message.message.type)
        if message.message.type == MessageType.HEARTBEAT:
            self._heartbeats += 1
        payload = message.payload
        measurement = Measurement(self._ended, agent, message, is_skill=is_skill)
        if isinstance(payload, RequestPayload):
            self._retries += payload.metadata.retry_count > 0
            self._in_flight += 1
            if is_skill:
                self._window(agent, payload.action).in_flight += 1
        return measurement

    def measured(self, agent: str, skill: str) -> SkillPerformance:
        """Return what was measured of a skill."""
        window = self._windows.get((agent, skill))
        if window is None:
            return SkillPerformance()
        since = self._clock() - WINDOW_SECONDS
        while window.answers and window.answers[0][0] < since:
            window.answers.popleft()
        times = sorted(took for _, took, _ in window.answers)
        if not times:
            return SkillPerformance(in_flight=window.in_flight)
        good = sum(is_good for _, _, is_good in window.answers)
        return SkillPerformance(
            average_response_time=round(sum(times) / len(times) * 1000),
            p95_response_time=round(times[math.ceil(len(times) * 0.95) - 1] * 1000),
            reliability=round(good / len(times), 4),
            requests=len(times),
            in_flight=window.in_flight,
        )

    def counts(self) -> EnvelopeCounts:
        """Return the counters since the start."""
        return EnvelopeCounts(
            messages=self._messages,
            answers=self._answers,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            in_flight=self._in_flight,
            retries=self._retries,
            heartbeats=self._heartbeats,
            slowest_ms=round(self._slowest * 1000),
            by_type=dict(self._types),
            by_status=dict(self._statuses),
            by_error=dict(self._errors),
        )

    def _window(self, agent: str, skill: str) -> _Window:
        key = agent, skill
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window()
            if len(self._windows) > MAX_SKILLS:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(key)
        return window

    def _ended(
        self, measurement: Measurement, took: float, status: str, error: str, size: int
    ) -> None:
        message = measurement.request
        payload = message.payload
        self._answers += 1
        self._bytes_out += size
        _count(self._statuses, status)
        if error:
            _count(self._errors, error)
        self._slowest = max(self._slowest, took)
        if isinstance(payload, RequestPayload):
            self._in_flight -= 1
            if measurement.is_skill:
                self._end_skill(measurement, payload.action, took, error)
        level = logging.INFO if error in _FAULTS else logging.DEBUG
        if log.isEnabledFor(level):
            self._log(level, measurement, took, status, error, size)

    def _end_skill(self, measurement: Measurement, skill: str, took: float, error: str) -> None:
        window = self._windows.get((measurement.agent, skill))
        if window is None or not window.in_flight:
            return  # forgotten since
        window.in_flight -= 1
        if error not in _REFUSALS:
            window.answers.append((self._clock(), took, error not in _FAULTS))

    def _log(
        self, level: int, measurement: Measurement, took: float, status: str, error: str, size: int
    ) -> None:
        message, payload = measurement.request, measurement.request.payload
        is_request = isinstance(payload, RequestPayload)
        log.log(
            level,
            "type=%s action=%s agent=%s status=%s error=%s ms=%d bytes=%d priority=%s retry=%d",
            shown(message.message.type),
            shown(payload.action) if is_request else "-",  # type: ignore[union-attr]
            shown(measurement.agent) or "-",
            shown(status) or "-",
            shown(error) or "-",
            round(took * 1000),
            size,
            shown(message.message.priority) if is_request else "-",
            payload.metadata.retry_count if is_request else 0,  # type: ignore[union-attr]
        )


def shown(text: str) -> str:
    """Return a text of a message for a log line: short, and without spaces, breaks and quotes."""
    short = text[:80]
    if short.isascii() and short.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return short
    return "".join(
        char if char.isascii() and (char.isalnum() or char in "-_.:/@") else "?" for char in short
    )


def _count(counter: Counter[str], name: str) -> None:
    """Count a kind that a sender names: at most ``MAX_KINDS`` are told apart."""
    if name not in counter and len(counter) >= MAX_KINDS:
        name = OTHERS
    counter[name[:80]] += 1
