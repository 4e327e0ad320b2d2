"""Resolves names, and makes sockets, both only for addresses that a policy allows."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

from parley.security.egress.dialled import dialled

MAX_LOOKUPS = 64
"""The number of concurrent DNS look-ups of a connector."""

lookup_caller: ContextVar[str] = ContextVar("parley_looked_up_for", default="")
"""The caller on whose behalf a call is made: none may use more than half of the look-ups."""


class NameLookup(Protocol):
    """Resolves a name, as the resolvers of aiohttp do."""

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        """Return the addresses of a name. Raises ``OSError``."""
        ...


class ThreadedLookup:
    """Resolves names in its own threads, fairly: slow names of one caller delay no other's."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_LOOKUPS, "parley-lookup")
        self._free = MAX_LOOKUPS
        self._used: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def _look_up(self, look_up: Callable[[], list[Any]]) -> list[Any]:
        """Run a look-up once its caller may have a thread. A cancelled one keeps its thread."""
        loop, caller = asyncio.get_running_loop(), lookup_caller.get()
        while self._used[caller] >= self._free:
            waiter = loop.create_future()
            self._waiting[waiter] = None
            try:
                await waiter
            finally:
                self._waiting.pop(waiter, None)

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._release, caller)

        self._count(caller, 1)
        job = self._threads.submit(look_up)
        job.add_done_callback(ended)
        return await asyncio.wrap_future(job)

    def _count(self, caller: str, count: int) -> None:
        self._free -= count
        self._used[caller] += count
        if not self._used[caller]:
            del self._used[caller]

    def _release(self, caller: str) -> None:
        self._count(caller, -1)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        """Return the addresses of a name. Raises ``OSError``."""
        look_up = partial(
            socket.getaddrinfo,
            host,
            port,
            family=family,
            type=socket.SOCK_STREAM,
            flags=socket.AI_ADDRCONFIG,
        )
        found = await self._look_up(look_up)
        return [
            {
                "hostname": host,
                "host": address[0],
                "port": address[1],
                "family": family,
                "proto": protocol,
                "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            }
            for family, _, protocol, _, address in found
        ]


class Judge(Protocol):
    """Raises ``ForbiddenAddress`` for an address, a port, and the host that led there."""

    def __call__(self, address: str, port: int, *, host: str) -> None:
        """Judge an address."""
        ...


class DialGuard:
    """Resolves names and makes sockets, for a connector: both only for allowed addresses.

    ``judge`` judges what a name resolves to, ``judge_socket`` what is dialled: of that the name is
    not known, and literal addresses of a URL are only seen there. ``make`` makes the sockets.
    """

    def __init__(
        self,
        lookup: NameLookup,
        judge: Judge,
        judge_socket: Judge,
        make: Callable[[Any], socket.socket] | None = None,
    ) -> None:
        self._lookup = lookup
        self._judge = judge
        self._judge_socket = judge_socket
        self._make = make

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[Any]:
        """Return the addresses of a name, all of them allowed. Raises ``ForbiddenAddress``."""
        found = await self._lookup.resolve(host, port, family)
        for each in found:
            self._judge(each["host"], port, host=host)
        return found

    def socket(self, info: Any) -> socket.socket:
        """Return a socket for an allowed address. Raises ``ForbiddenAddress``."""
        family, kind, protocol, _, address = info
        self._judge_socket(address[0], address[1], host="")
        dialled(address[0])
        return socket.socket(family, kind, protocol) if self._make is None else self._make(info)
