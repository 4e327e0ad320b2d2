"""A webhook that keeps its notifications."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple


class Told(NamedTuple):
    """One notification: its headers, in lower case, and its body."""

    headers: dict[str, str]
    body: Any


class Webhook:
    """The notifications in order, and the address ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.told: asyncio.Queue[Told] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read requests of a connection and accept each."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")[1:-2]
                headers = {k.lower(): v.strip() for k, _, v in (li.partition(":") for li in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                self.told.put_nowait(Told(headers, json.loads(body)))
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def webhook() -> AsyncIterator[Webhook]:
    """Listen within the block."""
    hook = Webhook("")
    listener = await asyncio.start_server(hook.serve, "127.0.0.1", 0)
    hook.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/hook"
    try:
        yield hook
    finally:
        listener.close()
