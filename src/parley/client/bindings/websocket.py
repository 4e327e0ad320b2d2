"""WebSockets of the client, opened by ``HttpTransport``, which checks their addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp import WSMsgType

from parley.client.errors import (
    AuthenticationRequired,
    ClientError,
    Disconnected,
    ResponseTooLarge,
    UnexpectedStatus,
)
from parley.model.backoff import seconds_of

MAX_SENT_AHEAD = 60.0
"""The time in seconds that a server may go without reading."""

CLOSE_SECONDS = 2.0
"""The time in seconds for a server to answer the close frame."""

BROKEN_SECONDS = 1.0
"""The pause before another attempt after a handshake broke off."""

_Translate = Callable[[Exception, str], ClientError]


MAX_REFUSAL = 64 * 1024
"""The number of bytes that are read from the body of a rejection."""

_refusals: ContextVar[dict[str, bytes] | None] = ContextVar("refusals", default=None)


class HandshakeRefused(AuthenticationRequired):
    """The server rejected the credentials of a handshake (401, 403). ``body`` is the response
    body."""

    body = b""


class SocketRefused(UnexpectedStatus):
    """The server, or a proxy in front of it, does not open WebSockets at this address."""


class OpenSocket:
    """A WebSocket that carries texts in both directions.

    ``subprotocol`` is the server's choice. A server that does not answer a ping is disconnected.
    """

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse[Any],
        url: str,
        *,
        translate: _Translate,
        on_close: Callable[[OpenSocket], None],
    ) -> None:
        self.subprotocol = socket.protocol or ""
        self.close_code: int | None = None
        self.close_reason = ""
        self._socket = socket
        self._url = url
        self._translate = translate
        self._on_close = on_close

    async def send(self, text: str) -> None:
        """Send a message. Raises ``Disconnected``, also if the server does not read it in time."""
        try:
            async with asyncio.timeout(MAX_SENT_AHEAD):
                await self._socket.send_str(text)
        except TimeoutError:
            self.abort()
            raise Disconnected(f"{self._url} does not read the messages sent to it") from None
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise self._broken(error) from error

    async def receive(self) -> str:
        """Return the next message.

        Raises ``Disconnected`` when the socket is closed or broken (``close_code``), and
        ``ResponseTooLarge``.
        """
        try:
            message = await self._socket.receive()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise self._broken(error) from error
        match message.type:
            case WSMsgType.TEXT:
                text: str = message.data
                return text
            case WSMsgType.BINARY:
                self.abort()
                raise Disconnected(f"{self._url} sends bytes, but only text is allowed")
            case WSMsgType.CLOSE:
                self.close_code = message.data
                self.close_reason = str(message.extra or "")[:200]
            case WSMsgType.ERROR if self._socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
                self.close_code = self._socket.close_code
                raise ResponseTooLarge(
                    f"a message of {self._url} is larger than the limit of this client"
                )
            case _:
                self.close_code = self.close_code or self._socket.close_code
        said = f" ({self.close_code} {self.close_reason})".replace(" )", ")")
        raise Disconnected(f"{self._url} closed the socket" + (said if self.close_code else ""))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the socket, within a time limit. Idempotent."""
        self._on_close(self)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.close(code=code, message=reason.encode()[:120])
        except (TimeoutError, aiohttp.ClientError, OSError, RuntimeError):
            self.abort()

    def abort(self) -> None:
        """Drop the connection at once, so that a pending ``receive`` ends. Idempotent."""
        self._on_close(self)
        self._socket._response.close()

    def _broken(self, error: Exception) -> ClientError:
        if isinstance(error, RuntimeError):  # raised by the library for a closed socket
            return Disconnected(f"the socket of {self._url} is closed")
        return self._translate(error, self._url)


def session_options(shown: Callable[[str], str], connect_timeout: float) -> dict[str, Any]:
    """Return options by which a session rejects redirects, and keeps the body of a rejection.

    After a redirect another server would get the credentials.
    """

    async def refuse(_: Any, __: Any, redirect: aiohttp.TraceRequestRedirectParams) -> None:
        status = redirect.response.status
        redirect.response.close()
        raise SocketRefused(
            f"{shown(str(redirect.url))} answered {status} and points to another address, which "
            "is not followed",
            status=status,
        )

    async def keep(_: Any, __: Any, end: aiohttp.TraceRequestEndParams) -> None:
        """Keep the body of a rejection, which the library would drop."""
        kept, response = _refusals.get(), end.response
        if kept is not None and response.status in (401, 403):
            body = b""
            while len(body) < MAX_REFUSAL and (data := await response.content.readany()):
                body += data
            kept["body"] = body[:MAX_REFUSAL]

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)
    trace.on_request_end.append(keep)
    return {"trace_configs": [trace], "timeout": aiohttp.ClientTimeout(connect=connect_timeout)}


async def open_socket(
    session: aiohttp.ClientSession,
    url: str,
    headers: Mapping[str, str],
    *,
    shown: str,
    subprotocol: str,
    handshake: float,
    max_message: int,
    ping: float | None,
    options: Mapping[str, Any],
    translate: _Translate,
    on_close: Callable[[OpenSocket], None],
) -> OpenSocket:
    """Open a WebSocket with a subprotocol that the server must choose.

    ``handshake`` bounds connecting and the server's answer, in seconds. ``shown`` is the address
    for error messages. ``ping`` is the interval of pings in seconds; an unanswered ping
    disconnects. Raises ``AuthenticationRequired`` (401, 403), ``SocketRefused`` for any other
    unexpected answer, ``Unreachable``, and ``ClientError``.
    """
    kept: dict[str, bytes] = {}
    token = _refusals.set(kept)
    try:
        async with asyncio.timeout(handshake):
            socket = await session.ws_connect(
                url,
                protocols=(subprotocol,),
                headers=headers,
                heartbeat=ping,
                max_msg_size=max_message,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                **{name: value for name, value in options.items() if value is not None},
            )
    except aiohttp.WSServerHandshakeError as error:
        given: Mapping[str, str] = error.headers or {}
        if error.status in (401, 403):
            words = "wants credentials" if error.status == 401 else "rejects these credentials"
            refused = HandshakeRefused(
                f"{shown} {words}", status=error.status, challenge=given.get("WWW-Authenticate", "")
            )
            refused.body = kept.get("body", b"")
            raise refused from None
        raise SocketRefused(
            f"{shown} rejects the WebSocket: it answered {error.status}",
            status=error.status,
            retry_after=seconds_of(given.get("Retry-After")),
        ) from None
    except aiohttp.ConnectionTimeoutError as error:
        raise translate(error, url) from error
    except TimeoutError:
        raise SocketRefused(
            f"{shown} opened no WebSocket within {handshake:g} s", status=0
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        found = translate(error, url)
        if isinstance(found, Disconnected):  # perhaps by a proxy without support for WebSockets
            raise SocketRefused(
                f"{shown} rejects the WebSocket: {found}", status=0, retry_after=BROKEN_SECONDS
            ) from error
        raise found from error
    finally:
        _refusals.reset(token)
    opened = OpenSocket(socket, shown, translate=translate, on_close=on_close)
    if opened.subprotocol != subprotocol:
        opened.abort()
        raise SocketRefused(
            f"{shown} opens WebSockets, but does not support {subprotocol} over them", status=101
        )
    return opened
