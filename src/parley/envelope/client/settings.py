"""How a client holds its envelope connection."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from parley.model.backoff import Backoff

Transport = Literal["auto", "socket", "http"]

TRANSPORTS = ("auto", "socket", "http")


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an envelope connection. Times are in seconds.

    ``heartbeat`` is the interval of HEARTBEATs: after ``tolerance`` of them without any message the
    connection counts as dead. ``ping`` is that of WebSocket pings. ``handshake``
    is how long a server has to open a WebSocket, after connecting. ``retries`` is how often in a
    row a request is sent again; pauses are those of ``backoff``. ``idle`` bounds the silence in a
    stream over HTTP. ``socket_again`` is how long HTTP is used before a WebSocket is tried again,
    twice as long after each failure, up to ten times. ``max_message`` is the largest message in
    bytes, in both directions; at most ``max_in_flight`` requests are under way, others wait; a
    stream whose reader is ``max_waiting`` messages behind is taken up again later.

    Raises ``ValueError`` for a value out of range.
    """

    transport: Transport = "auto"
    heartbeat: float = 30.0
    tolerance: int = 3
    ping: float | None = 20.0
    handshake: float = 10.0
    retries: int = 8
    backoff: Backoff = Backoff(0.2, 10.0, jitter=(0.5, 1.0))
    idle: float | None = 120.0
    socket_again: float = 60.0
    max_message: int = 10 * 1024 * 1024
    max_in_flight: int = 64
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise ValueError(
                f"transport is one of {', '.join(TRANSPORTS)}, not {self.transport!r:.60}"
            )
        for name, least in (("heartbeat", 0.01), ("handshake", 0.01), ("socket_again", 0.0)):
            _check_seconds(name, getattr(self, name), least)
        for name in ("ping", "idle"):
            if getattr(self, name) is not None:
                _check_seconds(name, getattr(self, name), 0.01)
        for name, least in (
            ("tolerance", 1),
            ("retries", 0),
            ("max_message", 1024),
            ("max_in_flight", 1),
            ("max_waiting", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is a whole number from {least} on, not {value!r:.60}")


def _check_seconds(name: str, value: object, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least:  # type: ignore[arg-type,operator]
        raise ValueError(f"{name} is a number of seconds from {least:g} on, not {value!r:.60}")
