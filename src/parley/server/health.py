"""Whether the server lives, and whether it takes requests."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from parley.server.lifecycle import Lifecycle
from parley.server.replies import refuse_method, reply, reply_without_body

_NO_STORE = (b"cache-control", b"no-store")


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer: as long as the server runs at all, this does."""
    await _answer(scope, send, 200, b"live")


def ready(lifecycle: Lifecycle) -> ASGIApp:
    """Return the handler that says whether requests are taken: 503 before start and at the end.

    Asking begins the start of a server that nothing else has started, so that a probe in front of
    a mounted app is answered in time.
    """

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if lifecycle.draining:
            await _answer(scope, send, 503, b"draining")
        elif lifecycle.started:
            await _answer(scope, send, 200, b"ready")
        else:
            lifecycle.start_soon()
            await _answer(scope, send, 503, b"starting")

    return handle


async def _answer(scope: Scope, send: Send, status: int, word: bytes) -> None:
    if scope["method"] == "HEAD":
        await reply_without_body(send, status, [_NO_STORE])
    elif scope["method"] == "GET":
        await reply(send, status, b'{"status":"%s"}' % word, [_NO_STORE])
    else:
        await refuse_method(scope, send, "GET, HEAD", "the health of the server is read with GET")
