"""Agents and apps at real addresses of this machine, and clients connected to them.

- ``served(agent)``: a server with the agent, and the ``RemoteAgent`` that calls it. ``way`` names
  the binding and the version, as in ``for way in WAYS``; ``client`` has options of
  ``parley.connect``, every other option is of ``parley.asgi``.
- ``parley.server.run.serving(app)``: an app on Parley's own connections, at a free port.
- ``under_uvicorn(app)``: the same app on the connections of uvicorn.
- ``parley.testing.client(agent)``: the agent without a port, for tests of what agents do.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

import parley
from parley.client import RemoteAgent
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.server.sockets import listen
from tests.kit.waiting import until

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
VERSIONS = ("1.0", "0.3")
WAYS = [(binding, version) for version in VERSIONS for binding in BINDINGS]
"""Each binding in each version of the protocol."""

START_SECONDS = 10.0


@asynccontextmanager
async def served(
    agent: Any,
    *,
    way: tuple[str, str] = ("", ""),
    client: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[RemoteAgent]:
    """Serve an agent, or several by their paths, and connect to it."""
    binding, version = way
    grpc = GrpcOptions(port=0) if binding == "GRPC" else None
    async with (
        serving(parley.asgi(agent, **options), grpc=grpc) as url,
        parley.connect(url, binding=binding, version=version, **(client or {})) as remote,
    ):
        yield remote


@asynccontextmanager
async def under_uvicorn(
    app: Any, *, port: int = 0, sock: socket.socket | None = None, **config: Any
) -> AsyncIterator[str]:
    """Serve an ASGI app under uvicorn, and yield its address.

    ``port`` is free unless given; ``sock`` is a bound socket.
    """
    [sock] = [sock] if sock is not None else listen("127.0.0.1", port)
    defaults = {"log_config": None, "timeout_graceful_shutdown": 5}
    server = uvicorn.Server(uvicorn.Config(app, **{**defaults, **config}))
    # Not serve(): it handles signals, which are for the tests.
    running = asyncio.create_task(server._serve([sock]))
    try:
        await until(lambda: server.started or running.done(), START_SECONDS)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


async def grpc_of(url: str) -> list[str]:
    """Return the addresses of an agent's gRPC, which a client trusts with credentials."""
    async with parley.connect(url) as agent:
        offered = agent.card.supported_interfaces
    return [one.url for one in offered if one.protocol_binding == "GRPC"]
