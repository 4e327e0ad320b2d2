"""Agents with extensions, on a real server, called by the public client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

import parley
from parley.server.run import serving

Serve = Callable[..., AbstractAsyncContextManager[parley.RemoteAgent]]


@pytest.fixture
def serve() -> Serve:
    """A maker of servers with one connection: ``async with serve(agent, **of connect) as remote``.

    ``caller`` is the option of ``asgi``.
    """

    @asynccontextmanager
    async def opened(
        agent: parley.Agent, *, caller: Any = None, **options: Any
    ) -> AsyncIterator[parley.RemoteAgent]:
        async with (
            serving(parley.asgi(agent, caller=caller)) as url,
            parley.connect(url, **options) as remote,
        ):
            yield remote

    return opened
