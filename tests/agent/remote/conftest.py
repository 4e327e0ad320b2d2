"""Agents that listen on sockets of this process and call each other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import parley
from parley import Agent, RemoteAgent
from parley.server.run import serving

Serve = Callable[..., Awaitable[str]]
"""Serves an agent until the test ends, and returns its address."""


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def served(agent: Agent, **options: Any) -> str:
            app = parley.asgi(agent, drain=0.2, **options)
            return await stack.enter_async_context(serving(app))

        yield served


@pytest.fixture
async def talk_to(serve: Serve) -> AsyncIterator[Callable[..., Awaitable[RemoteAgent]]]:
    """Serves an agent, and returns a connection to it."""
    async with AsyncExitStack() as stack:

        async def connected(agent: Agent, **options: Any) -> RemoteAgent:
            url = await serve(agent, **options)
            return await stack.enter_async_context(parley.connect(url))

        yield connected
