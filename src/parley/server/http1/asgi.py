"""One request on a connection of the server, answered by its exchange or by an ASGI app.

An exchange needs no ASGI messages, and mostly no task. It identifies the caller once for each
request. If the answer takes time, or is a stream, it continues as a request of an ASGI app.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.model.errors import OverloadedError
from parley.model.service import ANONYMOUS, Caller
from parley.server.http.exchange import AgentRequests, HttpAnswer, Identify, LaterAnswer
from parley.server.http.responses import with_hsts
from parley.server.http1.head import Field, RequestHead, field_name, response_head, whole_response
from parley.server.log import log_request

if TYPE_CHECKING:
    from parley.server.http1.connection import HttpConnection

_log = logging.getLogger("parley.server")


class DirectExchange:
    """One request with its body, on a connection. ``begin`` answers it, now or later.

    ``held`` is the size of the body while the caller is being identified.
    """

    __slots__ = ("_added", "_connection", "_exchange", "_is_gone", "_scope", "held")

    has_started = False

    def __init__(self, connection: HttpConnection, requests: AgentRequests) -> None:
        self._connection = connection
        self._exchange = requests.exchange()
        self._scope = requests.scope
        self._added = requests.added
        self.held = 0
        self._is_gone = False

    def begin(self, body: bytes) -> None:
        """Identify the caller, and answer."""
        identify = self._exchange.served.identify
        if identify is None:
            self._exchange.answer(body, ANONYMOUS, self._answered)
        else:
            # A separate context, as in a task, for context variables that the author's function
            # sets.
            copy_context().run(self._identify, identify, body)

    def _identify(self, identify: Identify, body: bytes) -> None:
        """Identify the caller, once, with its own copy of the scope."""
        exchange = self._exchange
        self._scope = exchange.scope = _own(self._scope)
        try:
            caller = identify(self._scope)
        except (Exception, asyncio.CancelledError) as error:
            self._write(exchange.refusal(error))
            return
        if isinstance(caller, Caller):
            exchange.answer(body, caller, self._answered)
        else:
            self.held = len(body)
            self._connection.run_task(self._identify_later(caller, body))

    async def _identify_later(self, identifying: Awaitable[Caller], body: bytes) -> None:
        """Answer once the caller is known, unless the client has left."""
        exchange = self._exchange
        try:
            caller = await identifying
        except (Exception, asyncio.CancelledError) as error:
            try:
                self._write(exchange.refusal(error))
            except asyncio.CancelledError:
                self._write_failure(503)
                raise
            return
        if not self._is_gone:
            self.held = 0
            self._connection.wants_body()
            exchange.answer(body, caller, self._answered)

    def _answered(self, answer: LaterAnswer) -> None:
        if isinstance(answer, HttpAnswer):
            if answer.items is None:
                self._write(answer)
                return
            self._connection.forget_head()
        exchange, added = self._exchange, self._added

        def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            return exchange.send(answer, receive, with_hsts(send, added))

        self._connection.go_on(app, self._scope)

    def _write(self, answer: HttpAnswer) -> None:
        """Write an answer, its head and body together."""
        connection, status, body = self._connection, answer.status, answer.body
        if self._is_gone:
            return
        fields = (*answer.headers, *self._added)
        try:
            if body is not None:
                fields = ((b"content-type", self._exchange.media_type), *fields)
            if not connection.keeps_alive:
                fields = (*fields, (b"connection", b"close"))
            if status == 204:
                written = response_head(status, fields)
            else:
                written = whole_response(status, fields, body or b"")
        except Exception as failure:  # such as a challenge that no header can have
            _log.error("the app failed at a request", exc_info=failure)
            self._write_failure(500)
            return
        if connection.logs_access:
            log_request(self._scope, status)
        connection.write(written)
        connection.answered()

    def _write_failure(self, status: int) -> None:
        """Write the response for a missing answer, as for any ASGI app, and close."""
        connection = self._connection
        if self._is_gone:
            return
        if connection.logs_access:
            log_request(self._scope, status)
        connection.keeps_alive = False
        connection.write(whole_response(status, *failure_of(status)))
        connection.answered()

    # -- callbacks of the connection -----------------------------------------------------------

    def feed(self, piece: bytes) -> None:
        """Do nothing, since the whole body was given."""

    def end_body(self) -> None:
        """Do nothing, since the whole body was given."""

    def leave(self, then: Callable[[], object]) -> bool:
        """Return false: nothing is read any more."""
        return False

    def disconnect(self) -> None:
        """Record that the client has left; the turn continues."""
        self._is_gone = True

    def give_up(self) -> None:
        """Answer that the server ended before there was an answer."""
        error = OverloadedError("the server shut down before the answer was there")
        self._write(self._exchange.refusal(error))
        self._is_gone = True


def _own(scope: Scope) -> Scope:
    """Return a copy of a shared scope, for an app that may change it."""
    own = {**scope, "headers": list(scope["headers"]), "state": dict(scope["state"])}
    if "extensions" in scope:
        own["extensions"] = dict(scope["extensions"])
    return own


_LARGE = 64 * 1024
_WITHOUT_BODY = (204, 304)
_FAILED = (b"content-type", b"text/plain; charset=utf-8")


class AsgiExchange:
    """One request and its answer by an ASGI app.

    The head of the answer is written together with the first part of its body. ``held`` is the
    number of bytes of the request's body that the app has not read; ``has_started``: the answer has
    begun.
    """

    __slots__ = (
        "_asks_for_head", "_body", "_connection", "_has_chunks", "_in_chunks", "_is_body_complete",
        "_is_complete", "_is_gone", "_on_gone", "_reads", "_receivers", "_scope", "_start", "_then",
        "_unsent", "_without_body", "has_started", "held",
    )  # fmt: skip

    def __init__(self, connection: HttpConnection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope
        # Apps may change the scope; the framing of the answer does not depend on it.
        self._asks_for_head = scope["method"] == "HEAD"
        self._has_chunks = scope["http_version"] == "1.1"
        self._body: list[bytes] = []
        self.held = 0
        self._is_body_complete = False
        self._receivers: list[asyncio.Future[None]] = []
        self._on_gone: Callable[[], None] | None = None
        self._is_gone = self._is_complete = self._reads = False
        self._then: Callable[[], object] | None = None
        # The answer: its head until the body begins, and the way its length is determined.
        self._start: tuple[int, list[Field]] | None = None
        self.has_started = False
        self._in_chunks = self._without_body = False
        self._unsent: int | None = None  # of a declared length

    # -- called by the connection ----------------------------------------------------------------

    def feed(self, piece: bytes) -> None:
        """Receive a chunk of the body."""
        if self._is_complete:
            return
        self._body.append(piece)
        self.held += len(piece)
        self._wake()

    def end_body(self) -> None:
        """Note that the body is complete."""
        self._is_body_complete = True
        self._wake()

    def take_body(self) -> None:
        """Note that the app has the body already."""
        self._is_body_complete, self._body = True, _TAKEN

    def give_up(self) -> None:
        """Wait for the app, whose task is cancelled at the end of the server."""

    def leave(self, then: Callable[[], object]) -> bool:
        """Make an app that reads the body end, as if the client had left, and call ``then`` once.

        If called again, it calls ``then`` at once. Returns false, and does nothing, if the app does
        not read.
        """
        if not self._reads:
            return False
        if self._then is None:
            self._then = then
            self.disconnect()
        else:
            self._then()
        return True

    def disconnect(self) -> None:
        """Record that the client has left."""
        self._is_gone = True
        self._body, self.held = [], 0
        self._wake()
        if self._on_gone is not None:
            self._on_gone()

    def _wake(self) -> None:
        if self._receivers:
            receivers, self._receivers = self._receivers, []
            for receiver in receivers:
                if not receiver.done():
                    receiver.set_result(None)

    # -- the app ---------------------------------------------------------------------------------

    async def run(self, app: ASGIApp) -> None:
        """Call the app, and complete an unfinished answer."""
        try:
            running = app(self._scope, self.receive, self.send)
            del app  # it may reference the request, which a stream outlives by hours
            await running
        except asyncio.CancelledError:
            # The grace period of the server is over.
            self._give_up(503)
            raise
        except BaseException as error:
            _log.error("the app failed at a request", exc_info=error)
            self._give_up(500)
            if not isinstance(error, Exception):
                raise
        else:
            if not (self._is_complete or self._is_gone):
                _log.error("the app did not complete its answer")
                self._give_up(500)
        finally:
            if self._then is not None:
                self._then()

    def _give_up(self, status: int) -> None:
        if self._is_complete or self._is_gone:
            return
        connection = self._connection
        if self.has_started:
            connection.close()
            return
        self._start = None
        fields, body = failure_of(status)
        self._begin(status, [*fields, (b"content-length", b"%d" % len(body))])
        self._write_first(body, has_more=False)

    # -- ASGI ------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Return the next chunk of the body, or a disconnect (ASGI)."""
        connection = self._connection
        self._reads = True
        while not (self._body or self._is_body_complete or self._is_gone or self._is_complete):
            connection.wants_body()
            await self._changed()
        if self._is_body_complete and self._body is _TAKEN:
            # The app waits for the client to leave.
            while not (self._is_gone or self._is_complete):
                await self._changed()
        if self._is_gone or self._is_complete:
            return {"type": "http.disconnect"}
        body = self._body
        piece = body[0] if len(body) == 1 else b"".join(body)
        has_more = not self._is_body_complete
        self._body, self.held = [] if has_more else _TAKEN, 0
        if has_more:
            connection.wants_body()
        return {"type": "http.request", "body": piece, "more_body": has_more}

    def call_when_gone(self, callback: Callable[[], None]) -> bool:
        """Call back if the client leaves before the answer is complete, as a replacement of
        ``receive``.

        Returns whether that is possible: only if the whole body was read does the connection read
        without the app, and so notices that the client has left.
        """
        if not self._is_body_complete or self.held or self._is_gone:
            return False
        self._on_gone = callback
        return True

    async def _changed(self) -> None:
        receiver = asyncio.get_running_loop().create_future()
        self._receivers.append(receiver)
        await receiver

    async def send(self, message: Message) -> None:
        """Accept a message of the app (ASGI). Raises ``RuntimeError`` for one out of order."""
        connection = self._connection
        if connection.is_write_paused:
            await connection.writable()
        if self._is_gone:
            return
        kind = message["type"]
        if self._is_complete:
            raise RuntimeError(f"{kind} came after the answer was complete")
        if not self.has_started and self._start is None:
            if kind != "http.response.start":
                raise RuntimeError(f"{kind} came before http.response.start")
            self._begin(message["status"], list(message.get("headers") or ()))
            return
        if kind != "http.response.body":
            raise RuntimeError(f"{kind} came where http.response.body should")
        body, has_more = message.get("body", b""), message.get("more_body", False)
        if not self.has_started:
            self._write_first(body, has_more=has_more)
        else:
            self._write_more(body, has_more=has_more)

    # -- the answer ------------------------------------------------------------------------------

    def _begin(self, status: int, headers: list[Field]) -> None:
        """Decide about the framing of the answer, and keep the head until the body begins."""
        fields: list[Field] = []
        self._without_body = self._asks_for_head or status in _WITHOUT_BODY or status < 200
        self._unsent = None
        has_close = False
        for name, value in headers:
            name = field_name(name)
            if name == b"content-length":
                if self._unsent is not None or not value.isdigit():
                    raise RuntimeError("the answer has no single Content-Length")
                self._unsent = int(value)
                if status in _WITHOUT_BODY[:1] or status < 200:
                    continue
            elif name == b"transfer-encoding":
                continue  # decided by the server itself
            elif name == b"connection" and b"close" in value.lower():
                has_close = True
                self._connection.keeps_alive = False
            fields.append((name, value))
        if self._connection.is_expecting:
            # The client may send the body all the same, or the next request.
            self._connection.keeps_alive = False
        if not (self._connection.keeps_alive or has_close):
            fields.append((b"connection", b"close"))
        self._start = status, fields

    def _write_first(self, body: bytes, *, has_more: bool) -> None:
        """Write the head with the first part of the body."""
        assert self._start is not None
        status, fields = self._start
        is_unknown = self._unsent is None and not self._without_body
        if is_unknown and self._has_chunks:  # else the end of the connection ends the body
            self._in_chunks = True
            fields.append((b"transfer-encoding", b"chunked"))
        head = response_head(status, fields)
        self._start = None
        self.has_started = True
        if self._connection.logs_access:
            log_request(self._scope, status)
        self._write_more(body, has_more=has_more, head=head)
        del self._scope

    def _write_more(self, body: bytes, *, has_more: bool, head: bytes = b"") -> None:
        """Write a part of the body, after the head if that is new."""
        connection = self._connection
        if self._without_body:
            body = b""
        elif self._in_chunks:
            if body:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            if not has_more:
                body += b"0\r\n\r\n"
        elif self._unsent is not None:
            if len(body) > self._unsent or (not has_more and len(body) < self._unsent):
                if head:
                    self.has_started = False
                raise RuntimeError("the answer is not as long as its Content-Length")
            self._unsent -= len(body)
        if len(body) > _LARGE and head:
            connection.write(head)
            connection.write(body)
        elif head or body:
            connection.write(head + body if head else body)
        if not has_more:
            self._is_complete = True
            self._on_gone = None
            self._body, self.held = [], 0
            self._wake()
            connection.answered()


def failure_of(status: int) -> tuple[tuple[Field, ...], bytes]:
    """Return the answer of an app that gave none: its fields but the length, and its body."""
    body = b"Internal Server Error" if status == 500 else b"Service Unavailable"
    return (_FAILED, (b"connection", b"close")), body


def scope_of(
    head: RequestHead,
    *,
    server: tuple[str, int | None] | None,
    client: tuple[str, int] | None,
    scheme: str,
) -> dict[str, Any]:
    """Return the scope of a request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.http_version,
        "server": server,
        "client": client,
        "scheme": scheme,
        "method": head.method,
        "root_path": "",
        "path": head.path,
        "raw_path": head.raw_path,
        "query_string": head.query,
        "headers": head.headers,
    }


_TAKEN: list[bytes] = []
"""A marker for a body that the app has completely read."""
