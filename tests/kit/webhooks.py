"""Webhook receivers for tests: real HTTP servers on this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web


class Told(NamedTuple):
    """One received notification."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def number(self) -> int:
        """Return the number of the event, from the notification's id."""
        return int(self.headers["a2a-notification-id"].rsplit("/", 1)[1])


class Webhook:
    """A receiver of notifications.

    ``answer`` is the status of each response, or a coroutine function that returns it.
    """

    def __init__(self) -> None:
        self.url = ""
        self.told: list[Told] = []
        self.answer: Callable[[Told], Any] = lambda told: 200
        self._news = asyncio.Event()

    async def take(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        told = Told(request.path, headers, await request.read())
        self.told.append(told)
        self._news.set()
        answer = self.answer(told)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, web.StreamResponse):
            return answer
        return web.Response(status=answer)

    async def until(self, enough: Callable[[list[Told]], bool], seconds: float = 10) -> None:
        """Wait until the received notifications are enough."""
        async with asyncio.timeout(seconds):
            while not enough(self.told):
                self._news.clear()
                await self._news.wait()

    async def until_over(self, seconds: float = 10) -> None:
        """Wait for the notification of a task's end."""
        seen = 0

        def has_ended(told: list[Told]) -> bool:
            nonlocal seen
            new, seen = told[seen:], len(told)
            return any(is_over(each) for each in new)

        await self.until(has_ended, seconds)


def is_over(told: Told) -> bool:
    """Return whether a notification reports a task's end."""
    ends = ("COMPLETED", "FAILED", "CANCELED", "completed", "failed", "canceled")
    said = told.json
    status = (said.get("statusUpdate") or said.get("task") or said).get("status") or {}
    return str(status.get("state", "")).removeprefix("TASK_STATE_") in ends


@asynccontextmanager
async def webhook(port: int = 0) -> AsyncIterator[Webhook]:
    """Run a webhook within the context."""
    hook = Webhook()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", hook.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    assert site._server is not None
    bound = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    hook.url = f"http://127.0.0.1:{bound}/hook"
    try:
        yield hook
    finally:
        await runner.cleanup()
