"""The load balancer of the compose file, in front of replicas without a database."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from parley.server.run import serving
from tests.deploy.proxied import HAPROXY
from tests.deploy.test_proxy import ADDRESSES, front
from tests.kit.http import call, post
from tests.kit.processes import free_port
from tests.kit.scripted import Scripted, app_of
from tests.kit.waiting import let_time_pass

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.service,
    pytest.mark.skipif(not HAPROXY, reason="HAProxy is not installed"),
]

BOUND = 60.0


async def statuses(url: str) -> set[int]:
    """Return the statuses of some requests; 0 means that no server listens yet."""
    found = set()
    for _ in range(6):
        try:
            found.add((await post(url, call())).status)
        except OSError:
            found.add(0)
    return found


async def until(url: str, wanted: set[int]) -> None:
    async with asyncio.timeout(BOUND):
        while await statuses(url) != wanted:
            await let_time_pass(0.1)


async def test_requests_go_where_the_database_is_reached_or_are_answered_by_an_agent(
    tmp_path: Path,
) -> None:
    troubles = ["", ""]
    services = [Scripted(), Scripted()]
    async with AsyncExitStack() as stack:
        port = free_port(ADDRESSES)
        for n, address in enumerate(ADDRESSES):
            app = app_of(services[n], unavailable_reason=lambda n=n: troubles[n])
            await stack.enter_async_context(serving(app, host=address, port=port))
        url = await stack.enter_async_context(front(tmp_path, port))
        await until(url, {200})
        troubles[0] = "the store was not heard of"
        async with asyncio.timeout(BOUND):
            while True:
                services[0].forget()
                await statuses(url)
                if not services[0].asked:
                    break
                await let_time_pass(0.1)
        assert await statuses(url) == {200}
        assert services[0].asked == []
        # When no replica is ready, the balancer still sends requests to a replica.
        troubles[1] = troubles[0]
        services[0].forget()
        async with asyncio.timeout(BOUND):
            while not services[0].asked:
                assert await statuses(url) == {200}
        troubles[:] = ["", ""]
        await until(url, {200})
