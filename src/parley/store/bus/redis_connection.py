"""A line to one Redis server, by which a bus hears and tells; made anew when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from redis.exceptions import ConnectionError, MovedError, RedisError, ResponseError

from parley.model.backoff import Backoff
from parley.store.bus.redis_url import Node, RedisAddress
from parley.store.ending import check_cancelled, end

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

logger = logging.getLogger(__name__)

BEAT = 3.0
PENDING_BYTES = 4 << 20
AT_A_TIME = 1000
"""How many commands are written at a time."""

READ_BYTES = 1 << 16
RECONNECT = Backoff(0.1, 5.0, jitter=(0.5, 1.0))


class RedisConnection:
    """Two connections to one server, one that hears and one that tells; made anew when lost.

    ``wanted`` says which channels are to be heard from a server, ``wants`` whether one is to be
    heard at all; ``heard`` gets what they bring. ``changed`` is told when the line is up or down,
    with the reason; ``began`` of a channel that is heard from now on, unless it was from when the
    line came up; ``moved`` when the server no longer has what is asked of it.
    """

    def __init__(
        self,
        address: RedisAddress,
        node: Node,
        *,
        wanted: Callable[[Node], Iterable[bytes]],
        wants: Callable[[bytes], bool],
        heard: Callable[[bytes], None],
        changed: Callable[[Exception | None], None],
        began: Callable[[bytes], None],
        moved: Callable[[], None],
    ) -> None:
        self.is_up = False
        self._address = address
        self._node = node
        self._wanted = wanted
        self._wants = wants
        self._heard = heard
        self._changed = changed
        self._began = began
        self._moved = moved
        self._is_sharded = is_sharded = address.kind == "cluster"
        self._publish = b"SPUBLISH" if is_sharded else b"PUBLISH"
        self._subscribe = b"SSUBSCRIBE" if is_sharded else b"SUBSCRIBE"
        self._unsubscribe = b"SUNSUBSCRIBE" if is_sharded else b"UNSUBSCRIBE"
        self._changes: dict[bytes, bool] = {}
        self._frames: list[bytes] = []
        self._bytes = 0
        self._wake = asyncio.Event()
        self._is_connected = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = asyncio.create_task(self._again_and_again(), name="parley-bus-link")

    def subscribe(self, channel: bytes, cares: bool) -> None:
        """Begin or cease to hear a channel."""
        if self._is_connected:
            self._changes[channel] = cares
            self._wake.set()

    def publish(self, channel: bytes, frame: bytes) -> None:
        """Send a message. It is dropped when the server is away, or too slow."""
        if self.is_up and self._bytes < PENDING_BYTES:
            command = _command(self._publish, channel, frame)
            self._frames.append(command)
            self._bytes += len(command)
            self._idle.clear()
            self._wake.set()

    async def flush(self) -> None:
        """Wait until what there was to send is sent."""
        await self._idle.wait()

    async def stop(self) -> None:
        """Disconnect."""
        await end([self._task])

    async def _again_and_again(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            try:
                await self._live()
            except* (RedisError, OSError) as errors:
                self._is_connected = self.is_up = False
                self._changed(_first(errors))
            except* Exception:
                self._is_connected = self.is_up = False
                logger.exception("the bus at %s failed", self._address.name)
            has_lasted = loop.time() - began > RECONNECT.longest
            failures = 1 if has_lasted else failures + 1
            await asyncio.sleep(RECONNECT.delay(failures))

    async def _live(self) -> None:
        """Connect, and go on until a connection is lost."""
        ear = await self._address.connect(self._node)
        try:
            mouth = await self._address.connect(self._node)
            try:
                self._is_connected = True
                self._changes = dict.fromkeys(self._wanted(self._node), True)
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._hear(ear))
                    both.create_task(self._hear_replies(mouth))
                    both.create_task(self._write_until_lost(ear, mouth))
            finally:
                self._is_connected = self.is_up = False
                self._changes = {}
                self._frames, self._bytes = [], 0
                self._idle.set()
                await mouth.disconnect(nowait=True)
        finally:
            await ear.disconnect(nowait=True)

    async def _write_until_lost(self, ear: AbstractConnection, mouth: AbstractConnection) -> None:
        try:
            await self._write(ear, mouth)
        except AttributeError:
            # Whoever reads had just found that the connection is lost, and closed it.
            if ear.is_connected and mouth.is_connected:
                raise
            raise ConnectionError("Connection closed by server.") from None

    async def _write(self, ear: AbstractConnection, mouth: AbstractConnection) -> None:
        loop = asyncio.get_running_loop()
        beat_at = 0.0
        timer: asyncio.TimerHandle | None = None
        try:
            while True:
                while self._changes:
                    await ear.send_packed_command(self._next_changes(), check_health=False)
                while self._frames:
                    frames, self._frames = self._frames, []
                    for begin in range(0, len(frames), AT_A_TIME):
                        packed = b"".join(frames[begin : begin + AT_A_TIME])
                        await mouth.send_packed_command(packed, check_health=False)
                    self._bytes -= sum(map(len, frames))
                if loop.time() >= beat_at:
                    # After what there is to subscribe to: so the first answer says that it is done.
                    for connection in (ear, mouth):
                        await connection.send_command("PING", check_health=False)
                    beat_at = loop.time() + BEAT
                    timer = loop.call_at(beat_at, self._wake.set)
                if not self._frames:
                    self._idle.set()
                check_cancelled()
                await self._wake.wait()
                self._wake.clear()
        finally:
            if timer is not None:
                timer.cancel()

    def _next_changes(self) -> bytes:
        """Return the commands for what is to be heard, or no longer; many channels a command."""
        names = list(self._changes)[:AT_A_TIME]
        begun: list[bytes] = []
        ended: list[bytes] = []
        for name in names:
            (begun if self._changes.pop(name) else ended).append(name)
        commands = []
        for word, channels in ((self._subscribe, begun), (self._unsubscribe, ended)):
            if self._is_sharded:  # those of a command would have to be of one slot
                commands += [_command(word, channel) for channel in channels]
            elif channels:
                commands.append(_command(word, *channels))
        return b"".join(commands)

    async def _hear(self, ear: AbstractConnection) -> None:
        """Pass on what channels bring, for as long as the connection lasts."""
        while True:
            try:
                reply = await ear.read_response(disable_decoding=True)
            except MovedError:
                self._moved()
                continue
            kind = reply[0] if isinstance(reply, list) else reply
            if kind in (b"message", b"smessage"):
                self._heard(reply[2])
            elif kind in (b"subscribe", b"ssubscribe"):
                if self.is_up:
                    self._began(reply[1])
            elif kind in (b"pong", b"PONG") and not self.is_up:
                self.is_up = True
                self._changed(None)
            elif kind == b"sunsubscribe" and self._wants(reply[1]):
                self._moved()  # not our wish: the slot has gone to another node

    async def _hear_replies(self, mouth: AbstractConnection) -> None:
        """Take the answers to what is sent, for as long as the connection lasts.

        Each is a line, of which there are very many and only errors say anything: so they are not
        parsed one by one.
        """
        stream: asyncio.StreamReader | None = mouth._reader
        rest = b""
        while stream is not None:
            async with asyncio.timeout(mouth.socket_timeout):
                data = await stream.read(READ_BYTES)
            if not data:
                break
            data = rest + data
            *lines, rest = data.split(b"\r\n")
            if b"-" in data:
                for line in lines:
                    if line.startswith(b"-MOVED "):
                        self._moved()
                    elif line.startswith(b"-"):
                        raise ResponseError(line[1:].decode(errors="replace"))
        raise ConnectionError("Connection closed by server.")


def _command(*words: bytes) -> bytes:
    """Return a command as it is sent."""
    return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(w), w) for w in words]))


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    """Return one of the errors of a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error
