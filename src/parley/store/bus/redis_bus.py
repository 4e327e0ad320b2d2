"""The bus over Redis or Valkey: a channel a task, and one for work. Nothing is kept there.

A replica subscribes to the channels of the tasks that it watches, a little later than it begins to
(see ``channel_interest``). On a cluster channels are sharded (Redis 7): a task's channel lives on
the node that has its slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import RedisError

from parley.model import backoff
from parley.store.bus.channel_interest import ChannelInterest
from parley.store.bus.frames import FrameBuffer, FrameReader
from parley.store.bus.redis_connection import RedisConnection
from parley.store.bus.redis_url import CONNECT_SECONDS, Node, RedisAddress
from parley.store.bus.subscriptions import LocalHints
from parley.store.ending import end
from parley.store.events import LoggedEvent

logger = logging.getLogger(__name__)

FRAME_BYTES = 16 * 1024
"""Bytes of one message; a larger record does not travel with its hint."""

TICK_SECONDS = 0.001
REFRESH_SECONDS = 60.0
FLUSH_SECONDS = 1.0


class RedisBus:
    """A ``Bus`` over Redis 6 or later, or Valkey; a cluster needs Redis 7.

    ``url`` is one of ``redis_url.FORMS``; ``?prefix=`` begins the names of channels. Whoever may
    publish on them can show readers false events, until they read the store: keep others out by an
    ACL (``&parley:*``) or a Redis of its own.
    """

    def __init__(self, url: str, *, tick: float = TICK_SECONDS) -> None:
        self._address = RedisAddress.of(url)
        self._tick = tick
        self._task_prefix = f"{self._address.prefix}task:".encode()
        self._work = f"{self._address.prefix}work".encode()
        self._hints: LocalHints | None = None
        self._buffer = FrameBuffer("")
        self._reader: FrameReader | None = None
        self._interest: ChannelInterest | None = None
        self._connections: dict[Node, RedisConnection] = {}
        self._owners: list[Node] = []  # of a cluster's slots
        self._discovery: asyncio.Task[None] | None = None
        self._discover_again = asyncio.Event()
        self._tried = asyncio.Event()
        self._timer: asyncio.Handle | None = None
        self._flushed_at = 0.0
        self._is_failing = False

    def __repr__(self) -> str:
        return f"<RedisBus {self._address.name}>"

    @property
    def is_up(self) -> bool:
        """Return whether all servers that are needed answer, as far as is known."""
        return bool(self._connections) and all([each.is_up for each in self._connections.values()])

    async def open(self, hints: LocalHints, replica: str) -> None:
        """Begin to connect, and wait a few seconds for it; the reconnect loops go on trying."""
        self._hints = hints
        self._buffer = FrameBuffer(replica)
        self._reader = FrameReader(hints)
        self._interest = ChannelInterest(hints, self._subscribe)
        self._tried.clear()
        if self._address.kind == "server":
            self._use([self._address.nodes[0]])
        else:
            self._discovery = asyncio.create_task(self._discover(), name="parley-bus-discovery")
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._tried.wait()

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        """Send the records of one append on the task's channel, at the next tick."""
        if self._connections and records and self._buffer.add(records):
            self._flush_soon()

    def publish_work(self, agent: str) -> None:
        """Tell the other replicas that an agent has unclaimed work."""
        if self._connections and self._buffer.add_work(agent):
            self._flush_soon()

    def watch(self, task_id: str, is_watched: bool) -> None:
        """Subscribe to a task's channel after a delay, or unsubscribe."""
        if self._interest is not None:
            self._interest.note(task_id, is_watched)

    async def close(self) -> None:
        """Send what is left, for a second at most, and disconnect. Idempotent."""
        if self._interest is not None:
            self._interest.close()
            self._interest = None
        discovery, self._discovery = self._discovery, None
        async with AsyncExitStack() as stack:
            stack.callback(self._buffer.clear)
            stack.push_async_callback(self._disconnect)
            if discovery is not None:
                await end([discovery])
            if self._timer is not None:
                self._timer.cancel()
                self._flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    for connection in self._connections.values():
                        await connection.flush()

    async def _disconnect(self) -> None:
        connections, self._connections = self._connections, {}
        self._hints = self._reader = None
        async with AsyncExitStack() as stack:
            for connection in connections.values():
                stack.push_async_callback(connection.stop)

    # -- publishing ----------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Send at the next tick, or at once if the last one is over."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._flushed_at > self._tick:
            self._timer = loop.call_soon(self._flush)
        else:
            self._timer = loop.call_later(self._tick, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._flushed_at = asyncio.get_running_loop().time()
        for task_id, frame in self._buffer.frames_by_task(FRAME_BYTES):
            channel = self._task_prefix + task_id.encode()
            connection = self._connection(channel)
            if connection is not None:
                connection.publish(channel, frame)
        for frame in self._buffer.frames(FRAME_BYTES):
            connection = self._connection(self._work)
            if connection is not None:
                connection.publish(self._work, frame)

    # -- subscribing ---------------------------------------------------------------------------

    def _subscribe(self, task_id: str, is_wanted: bool) -> None:
        channel = self._task_prefix + task_id.encode()
        connection = self._connection(channel)
        if connection is not None:
            connection.subscribe(channel, is_wanted)

    def _on_subscribed(self, channel: bytes) -> None:
        """Have the store asked for what was published before the subscription."""
        if self._hints is not None and channel != self._work:
            self._hints.notify_lost(
                channel.removeprefix(self._task_prefix).decode(errors="replace")
            )

    def _on_frame(self, frame: bytes) -> None:
        if self._reader is not None and not self._buffer.is_own(frame):
            self._reader.read(frame)

    def _channels(self, node: Node) -> Iterable[bytes]:
        """Return the channels to subscribe to at a server."""
        if self._hints is not None and self._interest is not None:
            subscribed = filter(self._interest.is_subscribed, self._hints.watched)
            watched = [self._task_prefix + task_id.encode() for task_id in subscribed]
            for channel in (self._work, *watched):
                if self._node(channel) == node:
                    yield channel

    def _is_wanted(self, channel: bytes) -> bool:
        if self._hints is None:
            return False
        task_id = channel.removeprefix(self._task_prefix).decode(errors="replace")
        return channel == self._work or self._hints.is_watched(task_id)

    def _on_state(self, error: Exception | None) -> None:
        """Note that a server is up, or why it is down."""
        self._tried.set()
        if error is not None:
            self._failed(error)
            self._discover_again.set()
        elif self._hints is not None:
            if self.is_up and self._is_failing:
                self._is_failing = False
                logger.warning("the bus at %s works again", self._address.name)
            self._hints.notify_lost()

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning(
                "the bus at %s does not work, hints come late until it does: %s",
                self._address.name,
                error,
            )

    # -- discovery of servers ------------------------------------------------------------------

    def _node(self, channel: bytes) -> Node | None:
        if self._owners:
            return self._owners[key_slot(channel)]
        return next(iter(self._connections), None)

    def _connection(self, channel: bytes) -> RedisConnection | None:
        node = self._node(channel)
        return None if node is None else self._connections.get(node)

    def _use(self, nodes: Iterable[Node]) -> list[RedisConnection]:
        """Connect to these servers alone; return the connections to others."""
        before, self._connections = self._connections, {}
        for node in nodes:
            if node in before:
                self._connections[node] = before.pop(node)
            elif node not in self._connections:
                self._connections[node] = RedisConnection(
                    self._address,
                    node,
                    channels=self._channels,
                    is_wanted=self._is_wanted,
                    on_frame=self._on_frame,
                    on_state=self._on_state,
                    on_subscribed=self._on_subscribed,
                    on_moved=self._discover_again.set,
                )
        return list(before.values())

    async def _discover(self) -> None:
        """Follow the servers that a cluster or Sentinels name."""
        while True:
            self._discover_again.clear()
            try:
                for unused in await self._refresh():
                    await unused.stop()
            except (RedisError, OSError, ValueError) as error:
                self._failed(error)
                self._tried.set()
                self._discover_again.set()
            # About twice a second at most, however often servers say that they are not the one.
            await asyncio.sleep(backoff.uniform(0.3, 0.7))
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._discover_again.wait()

    async def _refresh(self) -> list[RedisConnection]:
        """Ask which servers there are, and use them; return the connections to others."""
        if self._address.kind == "sentinel":
            return self._use([await self._address.master()])
        slots = await self._address.slots(list(self._connections))
        owners: list[Node] = [slots[0][2]] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, node in slots:
            owners[first : last + 1] = [node] * (last + 1 - first)
        if owners == self._owners:
            return []
        self._owners = owners
        unused = self._use([node for _, _, node in slots])
        # Channels of slots that moved get their new node; for the others it changes nothing.
        for node, connection in self._connections.items():
            for channel in self._channels(node):
                connection.subscribe(channel, True)
        if self._hints is not None:
            self._hints.notify_lost()
        return unused
