"""What is counted of messages, and a log line for each.

Nothing of a message's contents is kept or logged.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from parley.envelope.messages import Envelope, MessageType, RequestPayload, Status

log = logging.getLogger("parley.envelope.messages")

MAX_KINDS = 200
OTHERS = "(others)"

_FAULTS = frozenset({"INTERNAL_ERROR", "OVERLOADED", "INVALID_AGENT_RESPONSE"})
"""Errors that are not the caller's."""


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


class Measurement:
    """One message under way. ``end`` is called once; calling it again changes nothing."""

    __slots__ = ("_began", "_end", "_is_over", "agent", "request")

    def __init__(
        self,
        end: Callable[[Measurement, float, str, str, int], None],
        agent: str,
        request: Envelope,
    ) -> None:
        self._end = end
        self._is_over = False
        self._began = time.perf_counter()
        self.agent = agent
        self.request = request

    def end(self, status: str = Status.SUCCESS, *, error: str = "", size: int = 0) -> None:
        """Note the last answer: its status, its error code, and the bytes of all answers."""
        if not self._is_over:
            self._is_over = True
            self._end(self, time.perf_counter() - self._began, status, error, size)


class EnvelopeStatistics:
    """Counts messages, and logs a line for each. Kinds beyond a number count as ``(others)``."""

    def __init__(self) -> None:
        self._types: Counter[str] = Counter()
        self._statuses: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._messages = self._answers = self._bytes_in = self._bytes_out = 0
        self._in_flight = self._retries = self._heartbeats = 0
        self._slowest = 0.0

    def begin(self, message: Envelope, *, agent: str, size: int = 0) -> Measurement:
        """Note a message that has arrived."""
        self._messages += 1
        self._bytes_in += size
        _count(self._types, message.message.type)
        if message.message.type == MessageType.HEARTBEAT:
            self._heartbeats += 1
        payload = message.payload
        measurement = Measurement(self._ended, agent, message)
        if isinstance(payload, RequestPayload):
            self._retries += payload.metadata.retry_count > 0
            self._in_flight += 1
        return measurement

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
        level = logging.INFO if error in _FAULTS else logging.DEBUG
        if log.isEnabledFor(level):
            self._log(level, measurement, took, status, error, size)

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
