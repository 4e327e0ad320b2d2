"""Hints over Redis or Valkey: a channel a task, and one for work. Nothing is kept there.

A replica subscribes to a task's channel while somebody there cares about the task. On a cluster
channels are sharded (Redis 7): a task's channel lives on the node that has its slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import MovedError, RedisError

from parley.log import jitter
from parley.log.bus_frames import Outbox, Reader
from parley.log.ending import check_cancelled, end
from parley.log.events import LoggedEvent
from parley.log.hints import LocalHints
from parley.log.redis_link import Node, RedisAddress

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

logger = logging.getLogger(__name__)

FRAME = 16 * 1024
"""Bytes of one message; a record that is larger is not sent along."""

TICK = 0.001
BEAT = 3.0
PENDING_BYTES = 4 << 20
AT_A_TIME = 1000
"""How many commands are written at a time."""

LONGEST_PAUSE = 5.0
RENEWAL = 60.0
FLUSH = 1.0


class _Link:
    """Two connections to one server, one that hears and one that tells; made anew when lost.

    ``wanted`` says which channels are to be heard from a server, ``wants`` whether one is to be
    heard at all; ``heard`` gets what they bring. ``changed`` is told when the link is up or down,
    with the reason; ``moved`` when the server no longer has what is asked of it.
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
        moved: Callable[[], None],
    ) -> None:
        self.is_up = False
        self._address = address
        self._node = node
        self._wanted = wanted
        self._wants = wants
        self._heard = heard
        self._changed = changed
        self._moved = moved
        is_sharded = address.kind == "cluster"
        self._publish = b"SPUBLISH" if is_sharded else b"PUBLISH"
        self._subscribe = b"SSUBSCRIBE" if is_sharded else b"SUBSCRIBE"
        self._unsubscribe = b"SUNSUBSCRIBE" if is_sharded else b"UNSUBSCRIBE"
        self._changes: dict[bytes, bool] = {}
        self._frames: list[tuple[bytes, bytes, bytes]] = []
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
            self._frames.append((self._publish, channel, frame))
            self._bytes += len(frame)
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
        pause = 0.1
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
            if loop.time() - began > LONGEST_PAUSE:
                pause = 0.1
            await asyncio.sleep(pause * jitter.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

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
                    both.create_task(self._write(ear, mouth))
            finally:
                self._is_connected = self.is_up = False
                self._changes = {}
                self._frames, self._bytes = [], 0
                self._idle.set()
                await mouth.disconnect(nowait=True)
        finally:
            await ear.disconnect(nowait=True)

    async def _write(self, ear: AbstractConnection, mouth: AbstractConnection) -> None:
        loop = asyncio.get_running_loop()
        beat_at = 0.0
        while True:
            while self._changes:
                names = list(self._changes)[:AT_A_TIME]
                commands = [
                    (self._subscribe if self._changes.pop(name) else self._unsubscribe, name)
                    for name in names
                ]
                await ear.send_packed_command(ear.pack_commands(commands), check_health=False)
            while self._frames:
                frames, self._frames = self._frames, []
                for begin in range(0, len(frames), AT_A_TIME):
                    packed = mouth.pack_commands(frames[begin : begin + AT_A_TIME])
                    await mouth.send_packed_command(packed, check_health=False)
                self._bytes -= sum([len(frame) for _, _, frame in frames])
            if loop.time() >= beat_at:
                # After what there is to subscribe to: so the first answer says that it is done.
                for connection in (ear, mouth):
                    await connection.send_command("PING", check_health=False)
                beat_at = loop.time() + BEAT
            if not self._frames:
                self._idle.set()
            check_cancelled()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(beat_at):
                    await self._wake.wait()
            self._wake.clear()

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
            elif kind in (b"pong", b"PONG") and not self.is_up:
                self.is_up = True
                self._changed(None)
            elif kind == b"sunsubscribe" and self._wants(reply[1]):
                self._moved()  # not our wish: the slot has gone to another node

    async def _hear_replies(self, mouth: AbstractConnection) -> None:
        """Take the answers to what is sent, for as long as the connection lasts."""
        while True:
            try:
                await mouth.read_response(disable_decoding=True)
            except MovedError:
                self._moved()


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    """Return one of the errors of a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


class RedisBus:
    """A ``Bus`` over Redis 6 or later, or Valkey; a cluster needs Redis 7.

    ``url`` is one of ``redis_link.FORMS``; ``?prefix=`` begins the names of channels. Whoever may
    publish on them may show readers what is not so, until they look into the store: keep others
    out by an ACL (``&parley:*``) or a Redis of its own.
    """

    def __init__(self, url: str, *, tick: float = TICK) -> None:
        self._address = RedisAddress.of(url)
        self._tick = tick
        self._task_prefix = f"{self._address.prefix}task:".encode()
        self._work = f"{self._address.prefix}work".encode()
        self._hints: LocalHints | None = None
        self._outbox = Outbox("")
        self._reader: Reader | None = None
        self._links: dict[Node, _Link] = {}
        self._owners: list[Node] = []  # of a cluster's slots
        self._finding: asyncio.Task[None] | None = None
        self._find_again = asyncio.Event()
        self._tried = asyncio.Event()
        self._timer: asyncio.Handle | None = None
        self._flushed_at = 0.0
        self._is_failing = False

    def __repr__(self) -> str:
        return f"<RedisBus {self._address.name}>"

    @property
    def is_up(self) -> bool:
        """Whether all servers that are needed are there, as far as is known."""
        return bool(self._links) and all([link.is_up for link in self._links.values()])

    async def open(self, hints: LocalHints, replica: str) -> None:
        """Begin to connect, and wait a moment for it. A server that is not there is tried again."""
        self._hints = hints
        self._outbox = Outbox(replica)
        self._reader = Reader(hints)
        self._tried.clear()
        if self._address.kind == "server":
            self._use([self._address.nodes[0]])
        else:
            self._finding = asyncio.create_task(self._find(), name="parley-bus-find")
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_PAUSE):
                await self._tried.wait()

    def tell(self, records: Sequence[LoggedEvent]) -> None:
        """Tell those who care about a task of one append's records, a moment later."""
        if self._links and records and self._outbox.add(records):
            self._flush_soon()

    def work(self, agent: str) -> None:
        """Tell the other replicas that there is unclaimed work of an agent."""
        if self._links and self._outbox.add_work(agent):
            self._flush_soon()

    def watch(self, task_id: str, cares: bool) -> None:
        """Hear what is told of a task, or no longer."""
        channel = self._task_prefix + task_id.encode()
        link = self._link(channel)
        if link is not None:
            link.subscribe(channel, cares)

    async def close(self) -> None:
        """Tell what is left, for a second at most, and disconnect. Idempotent."""
        if self._finding is not None:
            await end([self._finding])
            self._finding = None
        if self._timer is not None:
            self._timer.cancel()
            self._flush()
        links = list(self._links.values())
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH):
                for link in links:
                    await link.flush()
        self._links = {}
        self._hints = self._reader = None
        for link in links:
            await link.stop()
        self._outbox.clear()

    # -- telling -------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Send after a moment what is to be told; at once after a quiet one."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._flushed_at > self._tick:
            self._timer = loop.call_soon(self._flush)
        else:
            self._timer = loop.call_later(self._tick, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._flushed_at = asyncio.get_running_loop().time()
        for task_id, frame in self._outbox.frames_by_task(FRAME):
            channel = self._task_prefix + task_id.encode()
            link = self._link(channel)
            if link is not None:
                link.publish(channel, frame)
        for frame in self._outbox.frames(FRAME):
            link = self._link(self._work)
            if link is not None:
                link.publish(self._work, frame)

    # -- hearing -------------------------------------------------------------------------------

    def _heard(self, frame: bytes) -> None:
        if self._reader is not None and not self._outbox.is_own(frame):
            self._reader.read(frame)

    def _wanted(self, node: Node) -> Iterable[bytes]:
        """Return the channels that are to be heard from a server."""
        if self._hints is not None:
            watched = [self._task_prefix + task_id.encode() for task_id in self._hints.watched]
            for channel in (self._work, *watched):
                if self._node(channel) == node:
                    yield channel

    def _wants(self, channel: bytes) -> bool:
        if self._hints is None:
            return False
        task_id = channel.removeprefix(self._task_prefix).decode(errors="replace")
        return channel == self._work or self._hints.is_watched(task_id)

    def _changed(self, error: Exception | None) -> None:
        """Take note that a link is up, or why it is down."""
        self._tried.set()
        if error is not None:
            self._failed(error)
            self._find_again.set()
        elif self._hints is not None:
            if self.is_up and self._is_failing:
                self._is_failing = False
                logger.warning("the bus at %s works again", self._address.name)
            self._hints.missed()

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning(
                "the bus at %s does not work, hints come late until it does: %s",
                self._address.name,
                error,
            )

    # -- which server has what -----------------------------------------------------------------

    def _node(self, channel: bytes) -> Node | None:
        if self._owners:
            return self._owners[key_slot(channel)]
        return next(iter(self._links), None)

    def _link(self, channel: bytes) -> _Link | None:
        node = self._node(channel)
        return None if node is None else self._links.get(node)

    def _use(self, nodes: Iterable[Node]) -> list[_Link]:
        """Connect to these servers; return the links to others, which are no longer used."""
        before, self._links = self._links, {}
        for node in nodes:
            if node in before:
                self._links[node] = before.pop(node)
            elif node not in self._links:
                self._links[node] = _Link(
                    self._address,
                    node,
                    wanted=self._wanted,
                    wants=self._wants,
                    heard=self._heard,
                    changed=self._changed,
                    moved=self._find_again.set,
                )
        return list(before.values())

    async def _find(self) -> None:
        """Keep to the servers that there are, as a cluster or Sentinels tell."""
        while True:
            self._find_again.clear()
            try:
                unused = await self._found()
                for link in unused:
                    await link.stop()
            except (RedisError, OSError, ValueError) as error:
                self._failed(error)
                self._tried.set()
                self._find_again.set()
            # About twice a second at most, however often servers say that they are not the one.
            await asyncio.sleep(jitter.uniform(0.3, 0.7))
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEWAL):
                    await self._find_again.wait()

    async def _found(self) -> list[_Link]:
        """Ask which servers there are, and use them; return the links that are no longer used."""
        if self._address.kind == "sentinel":
            return self._use([await self._address.master()])
        slots = await self._address.slots(list(self._links))
        owners: list[Node] = [slots[0][2]] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, node in slots:
            owners[first : last + 1] = [node] * (last + 1 - first)
        if owners == self._owners:
            return []
        self._owners = owners
        unused = self._use([node for _, _, node in slots])
        # What had moved is subscribed to where it is now; for the rest once more is harmless.
        for node, link in self._links.items():
            for channel in self._wanted(node):
                link.subscribe(channel, True)
        if self._hints is not None:
            self._hints.missed()
        return unused
