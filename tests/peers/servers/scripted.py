"""Shared code of the frameworks' servers: the scripted models' replies, and serving."""

import asyncio
import io
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn

NAME = "Scripted agent"
ASKS = "where to?"
REPORT = [f"chunk {n}. " for n in range(5)]


def chunks(said: str, files: Sequence[tuple[int, str]] = (), asked: bool = False) -> list[str]:
    """Return what a model answers, piece by piece.

    ``said`` is what the user said last, ``files`` the sizes and media types of what came with it,
    ``asked`` whether the agent had asked where to.
    """
    if asked:
        return [f"booked: {said}"]
    match said.split()[:1]:
        case ["hello"]:
            return ["hello yourself"]
        case ["report"]:
            return REPORT
        case ["file"]:
            return [", ".join(f"{size} bytes of {kind}" for size, kind in files) or "no file"]
        case ["book"]:
            return [ASKS]
    return ["what?"]


async def _serve(make: Callable[[str, int], Any]) -> None:
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    app = make("127.0.0.1", port)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    print(f"http://127.0.0.1:{port}", file=sys.__stdout__, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = server.force_exit = True
    await serving


def serve(make: Callable[[str, int], Any]) -> None:
    """Serve the app that ``make`` makes for a host and a port, until standard input closes."""
    logging.disable()  # agents fail on purpose
    sys.stdout = io.StringIO()  # hides the output of frameworks
    asyncio.run(_serve(make))
    os._exit(0)  # drops a model that works without end
