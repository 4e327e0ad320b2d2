"""The bus over Redis or Valkey: one channel per task, and one for work. Nothing is stored there.

A replica subscribes to the channels of the tasks that it watches, with a short delay (see
``ChannelInterest``). On a cluster channels are sharded (Redis 7): a task's channel is on the node
with its slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import ConnectionError, MovedError, RedisError

from parley.model import backoff
from parley.model.concurrency import check_cancelled, end
from parley.store.bus import redis_url
from parley.store.bus.frames import FrameBus, reconnect
from parley.store.bus.redis_url import CONNECT_SECONDS, Node, RedisAddress
from parley.store.bus.subscriptions import LocalHints

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

FRAME_BYTES = 16 * 1024
"""Bytes of one message; a larger record is not sent with its hint."""

TICK_SECONDS = 0.001
REFRESH_SECONDS = 60.0
FLUSH_SECONDS = 1.0

HEARTBEAT_SECONDS = 3.0
PENDING_BYTES = 4 << 20
"""The number of bytes of messages that wait for a slow server before others are dropped."""

MAX_COMMANDS = 1000
"""The number of commands that are sent at a time."""


FOLLOWED_DELAY = 0.02
WORKED_ON_DELAY = 0.25
"""The delay in seconds of a subscription to a task that this replica works on."""


class RedisBus(FrameBus):
    """A ``Bus`` over Redis 6 or later, or Valkey; a cluster needs Redis 7.

    ``url`` has a form of ``redis_url.FORMS``; ``?prefix=`` is the prefix of channel names. A
    program that may publish there can show readers false events, until they read the store: use an
    ACL (``&parley:*``) or a separate Redis.
    """

    def __init__(self, url: str) -> None:
        self._address = RedisAddress.of(url)
        self._task_prefix = f"{self._address.prefix}task:".encode()
        self._work = f"{self._address.prefix}work".encode()
        super().__init__(self._address.name)
        self._interest: ChannelInterest | None = None
        self._connections: dict[Node, RedisConnection] = {}
        self._owners: list[Node] = []  # of a cluster's slots
        self._discovery: asyncio.Task[None] | None = None
        self._discover_again = asyncio.Event()
        self._timer: asyncio.Handle | None = None
        self._flushed_at = 0.0

    @property
    def is_up(self) -> bool:
        """Return whether all needed servers answer, as far as known."""
        return bool(self._connections) and all([each.is_up for each in self._connections.values()])

    async def open(self, hints: LocalHints, replica: str) -> None:
        """Begin to connect, and wait a few seconds for it; the reconnect loops continue to try."""
        self._begin(hints, replica)
        self._interest = ChannelInterest(hints, self._subscribe)
        if self._address.kind == "server":
            self._use([self._address.nodes[0]])
        else:
            self._discovery = asyncio.create_task(self._discover(), name="parley-bus-discovery")
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._tried.wait()

    def watch(self, task_id: str, is_watched: bool) -> None:
        """Subscribe to a task's channel after a delay, or unsubscribe."""
        if self._interest is not None:
            self._interest.note(task_id, is_watched)

    async def close(self) -> None:
        """Send the rest, for a second at most, and disconnect. Idempotent."""
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

    def _can_send(self) -> bool:
        return bool(self._connections)

    def _send_soon(self) -> None:
        """Send at the next tick, or at once if the last one is over."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._flushed_at > TICK_SECONDS:
            self._timer = loop.call_soon(self._flush)
        else:
            self._timer = loop.call_later(TICK_SECONDS, self._flush)

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
        """Have the store asked for events from before the subscription."""
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
        """Record that a server is up, or the reason why it is down."""
        self._tried.set()
        if error is not None:
            self._failed(error)
            self._discover_again.set()
        elif self._hints is not None:
            if self.is_up:
                self._works()
            self._hints.notify_lost()

    # -- discovery of servers ------------------------------------------------------------------

    def _node(self, channel: bytes) -> Node | None:
        if self._owners:
            return self._owners[key_slot(channel)]
        return next(iter(self._connections), None)

    def _connection(self, channel: bytes) -> RedisConnection | None:
        node = self._node(channel)
        return None if node is None else self._connections.get(node)

    def _use(self, nodes: Iterable[Node]) -> list[RedisConnection]:
        """Connect to only these servers; return the connections to others."""
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
            # At most about twice a second, however often servers redirect.
            await asyncio.sleep(backoff.uniform(0.3, 0.7))
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._discover_again.wait()

    async def _refresh(self) -> list[RedisConnection]:
        """Query the servers, and use them; return the connections to others."""
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
        # Channels of moved slots get their new node; for others this changes nothing.
        for node, connection in self._connections.items():
            for channel in self._channels(node):
                connection.subscribe(channel, True)
        if self._hints is not None:
            self._hints.notify_lost()
        return unused


class RedisConnection:
    """The two connections to one server, replaced when one is lost.

    ``channels`` returns the channels to subscribe to at a server, ``is_wanted`` whether a channel
    must be subscribed to at all. ``on_frame`` gets their messages. ``on_state`` is called when the
    server is up (``None``) and when it is down (the reason); ``on_subscribed`` with a channel whose
    subscription began while the server was up; ``on_moved`` when the server does not have the slot
    of a channel (any more).
    """

    def __init__(
        self,
        address: RedisAddress,
        node: Node,
        *,
        channels: Callable[[Node], Iterable[bytes]],
        is_wanted: Callable[[bytes], bool],
        on_frame: Callable[[bytes], None],
        on_state: Callable[[Exception | None], None],
        on_subscribed: Callable[[bytes], None],
        on_moved: Callable[[], None],
    ) -> None:
        self.is_up = False
        self._address = address
        self._node = node
        self._channels = channels
        self._is_wanted = is_wanted
        self._on_frame = on_frame
        self._on_state = on_state
        self._on_subscribed = on_subscribed
        self._on_moved = on_moved
        self._is_sharded = address.kind == "cluster"
        self._is_connected = False
        self._changes: dict[bytes, bool] = {}
        self._messages: list[tuple[bytes, bytes]] = []
        self._bytes = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = asyncio.create_task(reconnect(self._run, address.name), name="parley-bus")

    def subscribe(self, channel: bytes, is_wanted: bool) -> None:
        """Subscribe to a channel, or unsubscribe."""
        if self._is_connected:
            self._changes[channel] = is_wanted
            self._wake.set()

    def publish(self, channel: bytes, frame: bytes) -> None:
        """Publish a message. It is dropped when the server is down, or too slow."""
        if self.is_up and self._bytes < PENDING_BYTES:
            self._messages.append((channel, frame))
            self._bytes += len(channel) + len(frame)
            self._idle.clear()
            self._wake.set()

    async def flush(self) -> None:
        """Wait until all messages are sent."""
        await self._idle.wait()

    async def stop(self) -> None:
        """Disconnect."""
        await end([self._task])

    async def _run(self) -> bool:
        try:
            await self._session()
        except* (RedisError, OSError) as errors:
            self._on_state(_first(errors))
        return False

    async def _session(self) -> None:
        """Connect, and work until a connection is lost."""
        async with self._address.client(self._node) as client, client.pubsub() as sub_connection:
            await self._address.check_role(client)
            await sub_connection.connect()
            self._is_connected = True
            self._changes = dict.fromkeys(self._channels(self._node), True)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._receive(sub_connection))
                    both.create_task(self._send_until_lost(sub_connection, client))
            finally:
                self._is_connected = self.is_up = False
                self._changes = {}
                self._messages, self._bytes = [], 0
                self._idle.set()

    async def _send_until_lost(self, sub_connection: PubSub, pub_connection: Redis) -> None:
        try:
            await self._send(sub_connection, pub_connection)
        except (AttributeError, RuntimeError):
            # The receiving task has just found the connection lost, and closed it.
            if sub_connection.connection is None or sub_connection.connection.is_connected:
                raise
            raise ConnectionError("Connection closed by server.") from None

    async def _send(self, sub_connection: PubSub, pub_connection: Redis) -> None:
        loop = asyncio.get_running_loop()
        heartbeat_at = 0.0
        timer: asyncio.TimerHandle | None = None
        try:
            while True:
                while self._changes:
                    await self._subscribe_next(sub_connection)
                while self._messages:
                    await self._publish_next(pub_connection)
                if loop.time() >= heartbeat_at:
                    # After the subscriptions, so that the first answer confirms them.
                    await sub_connection.ping()
                    await pub_connection.ping()
                    heartbeat_at = loop.time() + HEARTBEAT_SECONDS
                    timer = loop.call_at(heartbeat_at, self._wake.set)
                if not self._messages:
                    self._idle.set()
                check_cancelled()
                await self._wake.wait()
                self._wake.clear()
        finally:
            if timer is not None:
                timer.cancel()

    async def _subscribe_next(self, sub_connection: PubSub) -> None:
        """Subscribe to the next channels and unsubscribe from others, many channels a command."""
        begun: list[bytes] = []
        ended: list[bytes] = []
        for channel in list(self._changes)[:MAX_COMMANDS]:
            (begun if self._changes.pop(channel) else ended).append(channel)
        if self._is_sharded:  # all channels of a command would need the same slot
            for channel in begun:
                await sub_connection.ssubscribe(channel)
            for channel in ended:
                await sub_connection.sunsubscribe(channel)
        else:
            if begun:
                await sub_connection.subscribe(*begun)
            if ended:
                await sub_connection.unsubscribe(*ended)

    async def _publish_next(self, pub_connection: Redis) -> None:
        """Publish the next messages, and check the answers."""
        messages, self._messages = self._messages[:MAX_COMMANDS], self._messages[MAX_COMMANDS:]
        pipeline = pub_connection.pipeline(transaction=False)
        publish = pipeline.spublish if self._is_sharded else pipeline.publish
        for channel, frame in messages:
            publish(channel, frame)
        for answer in await pipeline.execute(raise_on_error=False):
            if isinstance(answer, MovedError):
                self._on_moved()
            elif isinstance(answer, Exception):
                raise answer
        self._bytes -= sum([len(channel) + len(frame) for channel, frame in messages])

    async def _receive(self, sub_connection: PubSub) -> None:
        """Pass on messages, until the connection is lost."""
        while True:
            try:
                message = await sub_connection.get_message(timeout=redis_url.SILENCE_SECONDS)
            except MovedError:
                self._on_moved()
                continue
            if message is None:
                raise ConnectionError("the server does not answer")
            kind, channel = message["type"], message["channel"]
            if kind in ("message", "smessage"):
                self._on_frame(message["data"])
            elif kind in ("subscribe", "ssubscribe"):
                if self.is_up:
                    self._on_subscribed(channel)
            elif kind == "pong" and not self.is_up:
                self.is_up = True
                self._on_state(None)
            elif kind == "sunsubscribe" and self._is_wanted(channel):
                self._on_moved()  # not requested here: the slot has moved to another node


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    """Return one of the errors of a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


class ChannelInterest:
    """The watched tasks that the bus does not subscribe to yet.

    Most tasks are finished at once, and their replica commits all of it: a subscription for each
    would cost more than the task. So a task is subscribed to after a short delay, and after a
    longer one if this replica works on it. Hints before that are lost; the store is queried once
    the subscription is active.

    ``subscribe`` is called with ``True`` when a task is due, and with ``False`` when a subscribed
    task is no longer watched.
    """

    def __init__(self, hints: LocalHints, subscribe: Callable[[str, bool], None]) -> None:
        self._hints = hints
        self._subscribe = subscribe
        self._loop = asyncio.get_running_loop()
        # The start of their watch, the longest first.
        self._new: dict[str, float] = {}
        self._worked_on: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, task_id: str, is_watched: bool) -> None:
        """Note that a task is watched, or no longer is."""
        if is_watched:
            self._new[task_id] = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(FOLLOWED_DELAY, self._subscribe_due)
        elif not self._forget(task_id):
            self._subscribe(task_id, False)

    def is_subscribed(self, task_id: str) -> bool:
        """Return whether a watched task is subscribed to."""
        return task_id not in self._new and task_id not in self._worked_on

    def close(self) -> None:
        """Subscribe to nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _forget(self, task_id: str) -> bool:
        new = self._new.pop(task_id, None)
        return new is not None or self._worked_on.pop(task_id, None) is not None

    def _subscribe_due(self) -> None:
        now = self._loop.time()
        for task_id in _before(self._new, now - FOLLOWED_DELAY):
            since = self._new.pop(task_id)
            if self._hints.has_listener(task_id):
                self._worked_on[task_id] = since
            else:
                self._subscribe(task_id, True)
        for task_id in _before(self._worked_on, now - WORKED_ON_DELAY):
            del self._worked_on[task_id]
            self._subscribe(task_id, True)
        waits = self._new or self._worked_on
        later = self._loop.call_later
        self._timer = later(FOLLOWED_DELAY, self._subscribe_due) if waits else None


def _before(tasks: dict[str, float], until: float) -> list[str]:
    """Return the tasks with a time up to ``until``. The times must be ascending."""
    found = []
    for task_id, since in tasks.items():
        if since > until:
            break
        found.append(task_id)
    return found
