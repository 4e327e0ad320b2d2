"""WebSockets that are refused before they are open: with an HTTP answer, where the server can."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DENIAL = "websocket.http.response"
"""The extension of ASGI for an HTTP answer to a handshake."""

_POLICY_VIOLATION = 1008
_MAX_REASON = 123  # bytes, of a close frame (RFC 6455 §5.5)


async def refuse_with(
    scope: Scope,
    send: Send,
    status: int,
    body: bytes,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    reason: str = "",
) -> None:
    """Refuse a WebSocket that is not open yet.

    A server without the extension of ASGI sends status 403 instead.
    """
    if DENIAL not in (scope.get("extensions") or ()):
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": short(reason)})
        return
    length = (b"content-length", b"%d" % len(body))
    await send({"type": f"{DENIAL}.start", "status": status, "headers": [length, *headers]})
    await send({"type": f"{DENIAL}.body", "body": body})


async def refuse_with_message(
    scope: Scope,
    receive: Receive,
    send: Send,
    status: int,
    message: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Refuse a WebSocket that nothing was received from yet, with a message for a person."""
    if (await receive())["type"] == "websocket.connect":
        body = msgspec.json.encode({"error": message})
        headers = [
            (b"content-type", b"application/json"), (b"cache-control", b"no-store"), *headers
        ]  # fmt: skip
        await refuse_with(scope, send, status, body, headers, reason=message)


def refused_by(handler: ASGIApp) -> ASGIApp:
    """Return the app that refuses a WebSocket with what ``handler`` answers to a GET."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        is_received = False

        async def requested() -> Message:
            nonlocal is_received
            if is_received:
                return await receive()
            is_received = True
            return {"type": "http.request", "body": b"", "more_body": False}

        await handler(as_http(scope), requested, refusing(scope, send))

    return refuse


def refusing(scope: Scope, send: Send) -> Send:
    """Return a ``send`` that takes an HTTP answer, too, as the refusal of a WebSocket.

    Middleware that was written for requests refuses sockets with it.
    """
    has_extension = DENIAL in (scope.get("extensions") or ())

    async def sending(message: Message) -> None:
        kind = message["type"]
        if not kind.startswith("http.response."):
            await send(message)
        elif has_extension:
            await send({**message, "type": f"websocket.{kind}"})
        elif kind == "http.response.start":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})

    return sending


def as_http(scope: Scope) -> Scope:
    """Return the scope of a WebSocket as that of the GET that asked for it."""
    scheme = "https" if scope.get("scheme") in ("wss", "https") else "http"
    return {**scope, "type": "http", "method": "GET", "scheme": scheme}


def short(reason: str) -> str:
    """Return the reason of a close frame, within its bytes."""
    return reason.encode()[:_MAX_REASON].decode(errors="ignore")
