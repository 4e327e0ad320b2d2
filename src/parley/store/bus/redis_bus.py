"""Hints over Redis or Valkey: a channel a task, and one for work. Nothing is kept there.

A replica subscribes to a task's channel while somebody there cares about the task, and has for a
moment (see ``interest``). On a cluster channels are sharded (Redis 7): a task's channel lives on
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
from parley.store.bus.frames import FrameReader, Outbox
from parley.store.bus.redis_connection import RedisConnection
from parley.store.bus.redis_url import CONNECT_SECONDS, Node, RedisAddress
from parley.store.bus.subscriptions import LocalHints
from parley.store.ending import end
from parley.store.events import LoggedEvent

logger = logging.getLogger(__name__)

FRAME = 16 * 1024
"""Bytes of one message; a record that is larger is not sent along."""

TICK = 0.001
RENEWAL = 60.0
FLUSH = 1.0


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
        self._reader: FrameReader | None = None
        self._interest: ChannelInterest | None = None
        self._links: dict[Node, RedisConnection] = {}
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
        self._reader = FrameReader(hints)
        self._interest = ChannelInterest(hints, self._subscribe)
        self._tried.clear()
        if self._address.kind == "server":
            self._use([self._address.nodes[0]])
        else:
            self._finding = asyncio.create_task(self._find(), name="parley-bus-find")
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
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
        if self._interest is not None:
            self._interest.note(task_id, cares)

    async def close(self) -> None:
        """Tell what is left, for a second at most, and disconnect. Idempotent."""
        if self._interest is not None:
            self._interest.close()
            self._interest = None
        finding, self._finding = self._finding, None
        async with AsyncExitStack() as stack:
            stack.callback(self._outbox.clear)
            stack.push_async_callback(self._disconnect)
            if finding is not None:
                await end([finding])
            if self._timer is not None:
                self._timer.cancel()
                self._flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH):
                    for link in self._links.values():
                        await link.flush()

    async def _disconnect(self) -> None:
        links, self._links = self._links, {}
        self._hints = self._reader = None
        async with AsyncExitStack() as stack:
            for link in links.values():
                stack.push_async_callback(link.stop)

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

    def _subscribe(self, task_id: str, cares: bool) -> None:
        channel = self._task_prefix + task_id.encode()
        link = self._link(channel)
        if link is not None:
            link.subscribe(channel, cares)

    def _on_subscribed(self, channel: bytes) -> None:
        """Have the store asked what was told before a channel was heard."""
        if self._hints is not None and channel != self._work:
            self._hints.missed(channel.removeprefix(self._task_prefix).decode(errors="replace"))

    def _on_frame(self, frame: bytes) -> None:
        if self._reader is not None and not self._outbox.is_own(frame):
            self._reader.read(frame)

    def _channels(self, node: Node) -> Iterable[bytes]:
        """Return the channels that are to be heard from a server."""
        if self._hints is not None and self._interest is not None:
            settled = filter(self._interest.is_settled, self._hints.watched)
            watched = [self._task_prefix + task_id.encode() for task_id in settled]
            for channel in (self._work, *watched):
                if self._node(channel) == node:
                    yield channel

    def _is_wanted(self, channel: bytes) -> bool:
        if self._hints is None:
            return False
        task_id = channel.removeprefix(self._task_prefix).decode(errors="replace")
        return channel == self._work or self._hints.is_watched(task_id)

    def _on_state(self, error: Exception | None) -> None:
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

    def _link(self, channel: bytes) -> RedisConnection | None:
        node = self._node(channel)
        return None if node is None else self._links.get(node)

    def _use(self, nodes: Iterable[Node]) -> list[RedisConnection]:
        """Connect to these servers; return the links to others, which are no longer used."""
        before, self._links = self._links, {}
        for node in nodes:
            if node in before:
                self._links[node] = before.pop(node)
            elif node not in self._links:
                self._links[node] = RedisConnection(
                    self._address,
                    node,
                    channels=self._channels,
                    is_wanted=self._is_wanted,
                    on_frame=self._on_frame,
                    on_state=self._on_state,
                    on_subscribed=self._on_subscribed,
                    on_moved=self._find_again.set,
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
            await asyncio.sleep(backoff.uniform(0.3, 0.7))
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEWAL):
                    await self._find_again.wait()

    async def _found(self) -> list[RedisConnection]:
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
            for channel in self._channels(node):
                link.subscribe(channel, True)
        if self._hints is not None:
            self._hints.missed()
        return unused
