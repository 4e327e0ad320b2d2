"""ASGI's lifespan protocol, for apps that are not this package's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp, Message

_log = logging.getLogger("parley.server")


class StartupFailed(Exception):
    """The app said that it cannot start; the message is its own."""


@asynccontextmanager
async def lifespan_of(app: ASGIApp, state: dict[str, Any]) -> AsyncIterator[None]:
    """Start an app, and stop it at the end. One that knows no lifespan is served all the same.

    Raises ``StartupFailed``.
    """
    given: asyncio.Queue[Message] = asyncio.Queue()
    said: asyncio.Queue[Message | None] = asyncio.Queue()
    given.put_nowait({"type": "lifespan.startup"})
    is_started = False

    async def run() -> None:
        asgi = {"version": "3.0", "spec_version": "2.0"}
        try:
            await app({"type": "lifespan", "asgi": asgi, "state": state}, given.get, said.put)
        except Exception as error:
            if is_started:
                _log.exception("the lifespan of the app failed")
            else:
                _log.debug("the app has no lifespan: %s", error)
        finally:
            said.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        answer = await said.get()
        if answer is not None and answer["type"] == "lifespan.startup.failed":
            raise StartupFailed(answer.get("message") or "the app cannot start; its log says why")
        is_started = answer is not None
        yield
        if answer is not None and not task.done():
            given.put_nowait({"type": "lifespan.shutdown"})
            answer = await said.get()
            if answer is not None and answer["type"] == "lifespan.shutdown.failed":
                _log.error("the app did not stop as it should: %s", answer.get("message", ""))
    finally:
        task.cancel()
        await asyncio.wait({task})
