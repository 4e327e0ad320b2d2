"""A line that breaks: passes connections on, and cuts them after so many bytes of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


@asynccontextmanager
async def cutting_proxy(
    target: str,
    cuts: list[int],
    *,
    after: asyncio.Event | None = None,
    heard: bytearray | None = None,
) -> AsyncIterator[str]:
    """Serve ``target`` under another address; the n-th connection ends after ``cuts[n]`` bytes.

    Once ``cuts`` is used up, connections live as long as they want. No connection ends before
    ``after`` is set: a client may lose with its connection what it has received and not yet read.
    What clients send is added to ``heard``.
    """
    there = urlsplit(target)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        left = cuts.pop(0) if cuts else None
        far_reader, far_writer = await asyncio.open_connection(there.hostname, there.port)
        onward = asyncio.create_task(copy(reader, far_writer, heard=heard))
        try:
            await copy(far_reader, writer, left)
            if after is not None:
                await after.wait()
        except ConnectionError:
            pass
        finally:
            onward.cancel()
            await asyncio.gather(onward, return_exceptions=True)
            far_writer.close()
            writer.close()
            tasks.discard(task)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    limit: int | None = None,
    *,
    heard: bytearray | None = None,
) -> None:
    while data := await reader.read(65536 if limit is None else min(65536, limit)):
        if heard is not None:
            heard += data
        writer.write(data)
        await writer.drain()
        if limit is not None:
            limit -= len(data)
            if not limit:
                return
