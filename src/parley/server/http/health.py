"""Liveness and readiness of the server, for probes."""

from __future__ import annotations

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.server.http.responses import NO_STORE, refuse_method, reply, reply_without_body
from parley.server.lifecycle import Lifecycle


class _Health(msgspec.Struct, omit_defaults=True):
    """The answer. ``reason`` says why the agents cannot work now."""

    status: str
    reason: str = ""


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 200 as long as the process runs, whatever its store does."""
    await _answer(scope, send, 200, _Health("live"))


def ready(lifecycle: Lifecycle) -> ASGIApp:
    """Return the handler of the readiness probe: 503 before the start and while draining.

    It is 503 too while the store is unreachable, which is known without a query. A probe starts
    the agents of a mounted app that nothing else has started.
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
