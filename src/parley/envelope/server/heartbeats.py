"""HEARTBEATs: both sides of a socket show that they live, and how loaded they are.

The server answers each HEARTBEAT with one, sends its own at an interval, and closes a socket whose
other side has sent nothing at all for several of them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from parley.envelope.messages import VERSION, Envelope, MessageInfo, MessageType, Source
from parley.envelope.server.directory import SocketPeer
from parley.model.errors import TooManyRequestsError
from parley.model.ids import new_id
from parley.model.struct import Timestamp

log = logging.getLogger("parley.envelope")

MISSED = 4408
"""The close code of a socket whose other side went silent."""

SHORTEST, LONGEST = 0.05, 3600.0


class HeartbeatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How connections are kept and watched. Times are in seconds.

    The server sends a HEARTBEAT every ``interval``, and closes a socket after ``tolerance`` of them
    without a message from the other side. ``per_minute`` is how many HEARTBEATs one socket may
    send: they count against no other limit.

    Raises ``ValueError`` for a value out of range.
    """

    interval: float = 30.0
    tolerance: int = 3
    per_minute: int = 120

    def __post_init__(self) -> None:
        is_number = isinstance(self.interval, int | float) and not isinstance(self.interval, bool)
        if not is_number or not SHORTEST <= self.interval <= LONGEST:
            raise ValueError(
                f"the interval of heartbeats is {SHORTEST} to {LONGEST:g} seconds, not "
                f"{self.interval!r}"
            )
        for name in ("tolerance", "per_minute"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000:
                raise ValueError(f"{name} of heartbeats is a whole number from 1, not {value!r}")


class HeartbeatPayload(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a HEARTBEAT of the server says.

    ``load`` is from 0 (idle) to 1 (no room), ``draining`` says that the server takes no new work,
    ``time`` is its clock, ``interval`` the ms to its next HEARTBEAT.
    """

    load: float
    draining: bool
    time: str
    interval: int


class ServerLoad(msgspec.Struct):
    """Returns what HEARTBEATs say about the server; the app sets both."""

    load: Callable[[], float] = lambda: 0.0
    is_draining: Callable[[], bool] = lambda: False


class SocketHeartbeats:
    """The HEARTBEATs of one socket. ``run`` sends them until the socket closes.

    ``send`` sends a message, ``close`` closes the socket with a code and a reason. ``source`` is
    the agent at the address, and ``peer`` hears of HEARTBEATs that come. ``round_trip`` is that of
    the last HEARTBEAT that was answered, in seconds.
    """

    def __init__(
        self,
        send: Callable[[Envelope], Awaitable[Any]],
        close: Callable[[int, str], Awaitable[Any]],
        *,
        source: Source,
        settings: HeartbeatSettings | None = None,
        load: ServerLoad | None = None,
        peer: SocketPeer | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._send = send
        self._close = close
        self._source = source
        self._settings = settings or HeartbeatSettings()
        self._load = load or ServerLoad()
        self._peer = peer
        self._clock = clock or asyncio.get_running_loop().time
        self._heard_at = self._clock()
        self._sent: dict[str, float] = {}
        self._taken: deque[float] | None = None  # until one comes: it costs 700 bytes
        self._is_beating = False
        self.round_trip: float | None = None
        self.missed = 0

    def heard(self) -> None:
        """Note a message of any type: the other side lives."""
        self._heard_at = self._clock()
        self.missed = 0

    async def received(self, heartbeat: Envelope) -> None:
        """Take a HEARTBEAT: answer it, or note the round trip if it is an answer.

        Raises ``TooManyRequestsError`` for more than one socket may send.
        """
        self.heard()
        if self._peer is not None:
            self._peer.beat()
        now = self._clock()
        asked = heartbeat.message.correlation_id
        sent = self._sent.pop(asked, None) if asked else None
        if sent is not None:
            self.round_trip = now - sent
            return
        if asked:
            return  # an answer that came too late, or to nothing: it is never answered
        if self._taken is None:
            self._taken = deque(maxlen=self._settings.per_minute)
        taken = self._taken
        if len(taken) == taken.maxlen and now - taken[0] < 60.0:
            raise TooManyRequestsError(
                f"at most {taken.maxlen} HEARTBEATs a minute on one connection",
                retry_after=math.ceil(60.0 - (now - taken[0])),
            )
        taken.append(now)
        await self._send(self._message(heartbeat.message_id))

    async def beat(self) -> None:
        """Send a HEARTBEAT; close the socket if too many went without any message."""
        settings = self._settings
        if self._clock() - self._heard_at >= settings.interval:
            self.missed += 1
        if self.missed >= settings.tolerance:
            await self._close(MISSED, f"no message for {self.missed} heartbeats")
            return
        message = self._message()
        while len(self._sent) >= settings.tolerance:
            del self._sent[next(iter(self._sent))]
        self._sent[message.message_id] = self._clock()
        await self._send(message)

    async def run(self) -> None:
        """Send HEARTBEATs until this is cancelled, or the other side went silent."""
        while self.missed < self._settings.tolerance:
            await asyncio.sleep(self._settings.interval)
            await self.beat()

    def _message(self, correlation_id: str = "") -> Envelope:
        payload = HeartbeatPayload(
            load=round(min(max(self._load.load(), 0.0), 1.0), 3),
            draining=self._load.is_draining(),
            time=str(Timestamp.now()),
            interval=round(self._settings.interval * 1000),
        )
        return Envelope(
            version=VERSION,
            message_id=new_id(),
            timestamp=Timestamp.now(),
            source=self._source,
            message=MessageInfo(type=MessageType.HEARTBEAT, correlation_id=correlation_id),
            payload=msgspec.Raw(msgspec.json.encode(payload)),
        )
