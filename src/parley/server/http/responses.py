"""Complete HTTP responses."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from starlette.types import Scope, Send

Headers = Iterable[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")


async def reply(
    send: Send,
    status: int,
    body: bytes,
    headers: Headers = (),
    media_type: bytes = b"application/json",
) -> None:
    """Send a response with a body, which is JSON unless ``media_type`` says otherwise."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", media_type),
                (b"content-length", b"%d" % len(body)),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def reply_without_body(send: Send, status: int, headers: Headers = ()) -> None:
    """Send a response that has no body (204, 304, and all to HEAD)."""
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})
    await send({"type": "http.response.body", "body": b""})


async def reply_with_message(
    scope: Scope, send: Send, status: int, message: str, headers: Headers = ()
) -> None:
    """Send a message for a person, as JSON."""
    if scope["method"] == "HEAD":
        await reply_without_body(send, status, headers)
    else:
        await reply(send, status, msgspec.json.encode({"error": message}), headers)


async def refuse_method(scope: Scope, send: Send, allowed: str, message: str) -> None:
    """Send 405 with the allowed methods; to OPTIONS, only these."""
    allow = (b"allow", allowed.encode())
    if scope["method"] == "OPTIONS":
        await reply_without_body(send, 204, [allow])
    else:
        await reply_with_message(scope, send, 405, message, [allow])
