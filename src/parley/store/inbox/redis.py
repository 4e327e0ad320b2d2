"""An inbox in Redis or Valkey, for the replicas of a receiver."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Collection
from contextlib import AsyncExitStack
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from redis.exceptions import RedisError

from parley.store.bus.redis_url import RedisAddress
from parley.store.inbox.inbox import InboxAnswer, InboxFailed

if TYPE_CHECKING:
    from redis.asyncio import Redis


def _script(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text("utf-8")


_SCRIPTS = {name: _script(name) for name in ("admit", "finish", "release", "renew")}
_ADMISSIONS = (InboxAnswer.NEW, InboxAnswer.HANDLED, InboxAnswer.BUSY)


class RedisInbox:
    """Remembers notifications as keys that expire. A lost connection is made anew at the next use.

    ``url`` is one of ``redis_url.FORMS`` but a cluster. Redis must not evict the keys
    (``maxmemory-policy noeviction`` or ``volatile-ttl`` with room), and what it forgets when it is
    restarted without persistence is forgotten.
    """

    def __init__(self, url: str) -> None:
        self._address = RedisAddress.of(url)
        if self._address.kind == "cluster":
            raise ValueError("an inbox is in one Redis, or behind Sentinels, not in a cluster")
        self._prefix = f"{self._address.prefix}inbox:"
        self._client: Redis | None = None
        self._stack = AsyncExitStack()
        self._connecting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"RedisInbox({self._address.name!r})"

    async def open(self) -> None:
        """Connect."""
        try:
            client = await self._connected()
            await cast("Awaitable[Any]", client.ping())
        except (RedisError, OSError) as error:
            raise await self._failed(error) from None

    async def admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer:
        """Take the lane, unless the id was handled or another holds it."""
        answer = await self._run("admit", [self._id(id), self._lane(lane)], holder, _ms(lease))
        return _ADMISSIONS[int(answer)]

    async def finish(self, id: str, lane: str, holder: str, *, keep: float, last: bool) -> None:
        """Remember an id as handled."""
        keys = [self._id(id), self._lane(lane) if last else ""]
        await self._run("finish", keys, holder, _ms(keep))

    async def release(self, lane: str, holder: str) -> None:
        """Release a lane."""
        await self._run("release", [self._lane(lane)], holder)

    async def renew(self, lanes: Collection[str], holder: str, lease: float) -> None:
        """Hold lanes for longer."""
        await self._run("renew", [self._lane(lane) for lane in lanes], holder, _ms(lease))

    async def close(self) -> None:
        """Disconnect."""
        self._client = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    def _id(self, id: str) -> str:
        return f"{self._prefix}id:{_digest(id)}" if id else ""

    def _lane(self, lane: str) -> str:
        return f"{self._prefix}lane:{_digest(lane)}"

    async def _connected(self) -> Redis:
        async with self._connecting:
            if self._client is None:
                is_watched = self._address.kind == "sentinel"
                node = await self._address.master() if is_watched else self._address.nodes[0]
                client = await self._stack.enter_async_context(self._address.client(node))
                await self._address.check_role(client)
                self._client = client
            return self._client

    async def _run(self, name: str, keys: list[str], *values: str) -> Any:
        try:
            client = await self._connected()
            return await client.eval(_SCRIPTS[name], len(keys), *keys, *values)
        except (RedisError, OSError) as error:
            raise await self._failed(error) from None

    async def _failed(self, error: Exception) -> InboxFailed:
        await self.close()
        return InboxFailed(f"the inbox {self._address.name} fails: {type(error).__name__}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
