"""A real server for what an example makes, on a free port, for the length of a block."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

from tests.polling import until

EXAMPLES = Path(__file__).parents[2] / "examples"


@asynccontextmanager
async def listening(app: object, port: int = 0) -> AsyncIterator[str]:
    """Serve an ASGI app on a port, else a free one, and give its address."""
    with socket.socket(proto=socket.IPPROTO_TCP) as sock:
        sock.bind(("127.0.0.1", port))
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            async with asyncio.timeout(5):
                await until(lambda: server.started or serving.done())
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
