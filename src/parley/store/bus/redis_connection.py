"""One Redis server of a bus: a connection that subscribes, and one that publishes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from redis.exceptions import ConnectionError, MovedError, RedisError

from parley.model.backoff import Backoff
from parley.store.bus import redis_url
from parley.store.bus.redis_url import Node, RedisAddress
from parley.store.ending import check_cancelled, end

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 3.0
PENDING_BYTES = 4 << 20
"""How many bytes of messages wait for a slow server before others are dropped."""

BATCH = 1000
"""How many commands are sent at a time."""

RECONNECT = Backoff(0.1, 5.0, jitter=(0.5, 1.0))


class RedisConnection:
    """The two connections to one server, made anew when one is lost.

    ``channels`` returns those to subscribe to at a server, ``is_wanted`` whether one is to be
    subscribed to at all. ``on_frame`` gets what is published on them. ``on_state`` is called when
    the server is up (``None``) and when it is down (the reason); ``on_subscribed`` with a channel
    that was subscribed to while the server was up; ``on_moved`` when the server does not have the
    slot of a channel (any more).
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
        self._task = asyncio.create_task(self._reconnect_loop(), name="parley-bus-redis")

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

    async def _reconnect_loop(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            try:
                await self._session()
            except* (RedisError, OSError) as errors:
                self._on_state(_first(errors))
            except* Exception:
                logger.exception("the bus at %s failed", self._address.name)
            has_lasted = loop.time() - began > RECONNECT.longest
            failures = 1 if has_lasted else failures + 1
            await asyncio.sleep(RECONNECT.delay(failures))

    async def _session(self) -> None:
        """Connect, and go on until a connection is lost."""
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
            # The task that receives has just found the connection lost, and closed it.
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
                    # After the subscriptions: so the first answer says that these are done.
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
        for channel in list(self._changes)[:BATCH]:
            (begun if self._changes.pop(channel) else ended).append(channel)
        if self._is_sharded:  # the channels of one command would have to be of one slot
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
        """Publish the next messages, and look at the answers."""
        messages, self._messages = self._messages[:BATCH], self._messages[BATCH:]
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
        """Pass on what is published, until the connection is lost."""
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
                self._on_moved()  # not our wish: the slot has gone to another node


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    """Return one of the errors of a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error
