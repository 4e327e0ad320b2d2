"""Whether the server lives, and whether it takes requests."""

from __future__ import annotations

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.server.http.responses import NO_STORE, refuse_method, reply, reply_without_body
from parley.server.lifecycle import Lifecycle


class _Health(msgspec.Struct, omit_defaults=True):
    """What is answered. ``reason`` says why what is served can do nothing just now."""

    status: str
    reason: str = ""


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer: as long as the server runs at all, this does, whatever its store does."""
    await _answer(scope, send, 200, _Health("live"))


def ready(lifecycle: Lifecycle) -> ASGIApp:
    """Return the handler that says whether requests are taken: 503 before start and at the end.

    So it is while the store cannot be reached, which is known without asking it. Asking begins the
    start of a server that nothing else has started, so that a probe in front of a mounted app is
    answered in time.
    """

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        unavailable_reason = lifecycle.unavailable_reason
        if lifecycle.draining:
            await _answer(scope, send, 503, _Health("draining", unavailable_reason))
        elif unavailable_reason:
            await _answer(scope, send, 503, _Health("unavailable", unavailable_reason))
        elif lifecycle.started:
            await _answer(scope, send, 200, _Health("ready"))
        else:
            lifecycle.start_soon()
            await _answer(scope, send, 503, _Health("starting"))

    return handle


async def _answer(scope: Scope, send: Send, status: int, health: _Health) -> None:
    if scope["method"] == "HEAD":
        await reply_without_body(send, status, [NO_STORE])
    elif scope["method"] == "GET":
        await reply(send, status, msgspec.json.encode(health), [NO_STORE])
    else:
        await refuse_method(scope, send, "GET, HEAD", "the health of the server is read with GET")
