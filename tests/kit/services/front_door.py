"""A load balancer for several replicas: it sends each request to a random one."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from tests.kit.waiting import let_time_pass

LOOK_SECONDS = 0.25
LOOK_TIMEOUT = 1.0
OWN = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date"})


class FrontDoor:
    """A load balancer without sticky sessions.

    Each request goes to any replica whose last health check was good, or to another when that
    replica is unreachable. A replica that fails before its response causes a 502; a failure within
    the response breaks the connection. ``served`` counts requests by replica.
    """

    def __init__(self, replicas: Sequence[str], chance: random.Random) -> None:
        self.url = ""
        self.port = 0
        self.replicas = list(replicas)
        self.served: Counter[str] = Counter()
        self._chance = chance
        self._ready: dict[str, bool] = dict.fromkeys(replicas, True)
        self._session: aiohttp.ClientSession | None = None

    def order(self) -> list[str]:
        """Return the replicas in the order of attempts; unready ones only if none is ready."""
        some = [url for url in self.replicas if self._ready[url]]
        rest = [url for url in self.replicas if not self._ready[url]]
        self._chance.shuffle(some)
        self._chance.shuffle(rest)
        return some or rest

    async def look(self) -> None:
        """Check in a loop whether the replicas are ready."""
        while True:
            await asyncio.gather(*(self._ask(url) for url in self.replicas))
            await let_time_pass(LOOK_SECONDS)

    async def _ask(self, url: str) -> None:
        assert self._session is not None
        try:
            async with (
                asyncio.timeout(LOOK_TIMEOUT),
                self._session.get(f"{url}/health/ready") as answer,
            ):
                self._ready[url] = answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            self._ready[url] = False

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Forward a request to one replica."""
        assert self._session is not None
        body = await request.read()
        headers = {k: v for k, v in request.headers.items() if k.lower() not in OWN}
        for url in self.order():
            try:
                answer = await self._session.request(
                    request.method,
                    url + request.raw_path,
                    headers=headers,
                    data=body or None,
                    allow_redirects=False,
                )
            except aiohttp.ClientConnectorError:
                self._ready[url] = False
                continue
            except (aiohttp.ClientError, OSError):
                return web.Response(status=502)
            self.served[url] += 1
            async with answer:
                return await self._hand_back(request, answer)
        return web.Response(status=503, headers={"Retry-After": "1"})

    async def _hand_back(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        headers = {k: v for k, v in answer.headers.items() if k.lower() not in OWN}
        back = web.StreamResponse(status=answer.status, headers=headers)
        await back.prepare(request)
        try:
            async for piece in answer.content.iter_any():
                await back.write(piece)
        except aiohttp.ClientError:
            if request.transport is not None:
                request.transport.abort()
            return back
        with contextlib.suppress(ConnectionError):
            await back.write_eof()
        return back


@asynccontextmanager
async def front_door(replicas: Sequence[str], chance: random.Random) -> AsyncIterator[FrontDoor]:
    """Start a load balancer for replicas, given by their addresses, within the context."""
    door = FrontDoor(replicas, chance)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", door.pass_on)
    # When a caller disconnects, its request is canceled, also at the replica.
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True, access_log=None)
    await runner.setup()
    # Every request has its own connection, so that no connection of a dead replica is reused.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False
    ) as session:
        door._session = session
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        door.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        door.url = f"http://127.0.0.1:{door.port}"
        looking = asyncio.create_task(door.look())
        try:
            yield door
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await runner.cleanup()
