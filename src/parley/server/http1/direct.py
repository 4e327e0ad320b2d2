"""A request that its exchange answers itself: without ASGI messages, and mostly without a task.

It is the exchange of the ASGI app, which finds out who calls, parses, checks, asks the service and
writes. It identifies the caller once for each request, in a task if that takes time. Where the
answer takes time, the same exchange continues as an ASGI request whose body was read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any, Protocol, cast

from starlette.types import ASGIApp, Receive, Scope, Send

from parley.model.errors import A2AError, OverloadedError
from parley.model.service import ANONYMOUS, Caller, StreamItem
from parley.server.dispatch import BegunReply, ServiceCall
from parley.server.http.exchange import DirectRequests, Identify
from parley.server.http.responses import with_hsts
from parley.server.http1.asgi import AnsweredOn, failure_of
from parley.server.http1.head import Field, response_head, whole_response
from parley.server.log import log_request, log_unforeseen

_log = logging.getLogger("parley.server")


class AnswersDirectly(Protocol):
    """An app that knows which requests nothing but their exchange has a say in.

    Its answer holds for all requests with the same head on the same connection, for as long as its
    ``revision`` is the same.
    """

    @property
    def revision(self) -> int:
        """How often what requests are answered by has changed."""
        ...

    def direct(self, scope: Scope) -> DirectRequests | None:
        """Return the requests with the head of a scope, if their exchange answers them itself."""
        ...


class DirectlyAnsweredOn(AnsweredOn, Protocol):
    """The connection that a request came on."""

    def go_on(self, app: ASGIApp, scope: Scope) -> None:
        """Continue with the request in an ASGI app: its body was read."""
        ...

    def forget_head(self) -> None:
        """Forget the head of the request: its answer may take hours."""
        ...

    def run_task(self, answering: Coroutine[Any, Any, None]) -> None:
        """Run a part of the answer in a task."""
        ...


class DirectExchange:
    """One request with its body, on a connection. ``begin`` answers it, now or later.

    ``held`` is the size of the body, while it waits until its caller is known.
    """

    __slots__ = (
        "_added", "_begun", "_call", "_connection", "_exchange", "_is_gone", "_scope", "held",
    )  # fmt: skip

    has_started = False

    def __init__(self, connection: DirectlyAnsweredOn, requests: DirectRequests) -> None:
        self._connection = connection
        self._exchange = requests.exchange()
        self._scope = requests.scope
        self._added = requests.added
        self.held = 0
        self._call: ServiceCall | None = None
        self._begun: BegunReply | None = None
        self._is_gone = False

    def begin(self, body: bytes) -> None:
        """Find out who calls, ask the service, and answer once it has."""
        identify = self._exchange.served.identify
        if identify is None:
            self._ask(body, ANONYMOUS)
        else:
            # Context variables of the author's function stay in it, as in a task.
            copy_context().run(self._identify, identify, body)

    def _identify(self, identify: Identify, body: bytes) -> None:
        """Identify the caller, once, with a scope of its own."""
        exchange = self._exchange
        self._scope = exchange.scope = _own(self._scope)
        try:
            identified = identify(self._scope)
        except A2AError as error:
            self._refuse(error)
        except (Exception, asyncio.CancelledError):
            self._refuse(log_unforeseen(exchange.doing))
        else:
            if isinstance(identified, Caller):
                self._ask(body, identified)
            else:
                self.held = len(body)
                self._connection.run_task(self._wait_for_caller(identified, body))

    async def _wait_for_caller(self, identifying: Awaitable[Caller], body: bytes) -> None:
        """Ask the service once the caller is known, unless the client has gone."""
        exchange = self._exchange
        try:
            caller = await identifying
        except A2AError as error:
            self._refuse(error)
        except asyncio.CancelledError:
            failure = exchange.cancelled()
            if failure is None:
                self._write_failure(503)
                raise
            self._refuse(failure)
        except Exception:
            self._refuse(log_unforeseen(exchange.doing))
        else:
            if not self._is_gone:
                self.held = 0
                self._connection.wants_body()
                self._ask(body, caller)

    def _ask(self, body: bytes, caller: Caller) -> None:
        """Ask the service, and answer once it has."""
        exchange = self._exchange
        try:
            call = self._call = exchange.read(body if exchange.takes_body else b"", caller)
            begun = None if exchange.is_notification else call.begin()
        except A2AError as error:
            self._refuse(error)
            return
        except Exception:
            self._refuse(log_unforeseen(exchange.doing))
            return
        if begun is None:
            if call.is_read_at_once:
                self._read_at_once(call)
            else:
                if call.operation.streaming:
                    self._connection.forget_head()
                self._go_on(exchange.answered(call))
        elif begun.done:
            self._reply(call, begun)
        else:
            self._begun = begun
            begun.on_change(self._on_change)

    def _read_at_once(self, call: ServiceCall) -> None:
        """Write what is read without waiting."""
        exchange = self._exchange
        reading = cast("Coroutine[Any, Any, Any]", call.answer())
        try:
            try:
                reading.send(None)
            except StopIteration as read:
                body = exchange.written(call, read.value)
            else:  # it waits all the same: to read again changes nothing
                reading.close()
                self._go_on(exchange.answered(call))
                return
        except A2AError as error:
            self._refuse(error)
        except Exception:
            self._refuse(log_unforeseen(exchange.doing))
        else:
            self._answer(body)

    def _on_change(self, ends_at: float | None) -> None:
        call, begun = self._call, self._begun
        assert call is not None
        assert begun is not None
        if begun.done:
            self._reply(call, begun)
        elif self._is_gone:
            call.end()
        else:
            self._go_on(self._later(call, begun, ends_at))

    def _reply(self, call: ServiceCall, begun: BegunReply) -> None:
        exchange = self._exchange
        call.end()
        try:
            body = exchange.written(call, call.begun_reply(begun))
        except A2AError as error:
            self._refuse(error)
        except Exception:
            self._refuse(log_unforeseen(exchange.doing))
        else:
            self._answer(body)

    async def _later(self, call: ServiceCall, begun: BegunReply, ends_at: float | None) -> bytes:
        """Wait for a reply that another process gives, or show the task after the timeout."""
        return self._exchange.written(call, await call.later_reply(begun, ends_at))

    def _go_on(self, answering: Awaitable[bytes | AsyncIterator[StreamItem]]) -> None:
        exchange, added = self._exchange, self._added

        def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            return exchange.conclude(answering, receive, with_hsts(send, added))

        self._connection.go_on(app, self._scope)

    def _answer(self, body: bytes) -> None:
        """Write the body of an answer, unless the request wants none."""
        exchange = self._exchange
        if exchange.is_notification:
            self._write(204, None, exchange.response_headers)
        else:
            self._write(200, body, exchange.response_headers)

    def _refuse(self, error: A2AError) -> None:
        exchange = self._exchange
        try:
            status, body = exchange.error_response(error)
            fields = exchange.served.error_headers(error, self._scope)
            headers = [*exchange.response_headers, *fields]
            if exchange.is_notification:
                self._write(204 if status == 200 else status, None, headers)
            else:
                self._write(status, body, headers)
        except Exception as failure:  # such as a challenge that no header can have
            _log.error("the app failed at a request", exc_info=failure)
            self._write_failure(500)

    def _write_failure(self, status: int) -> None:
        """Say that there is no answer, as is said of any ASGI app, and close."""
        connection = self._connection
        if self._is_gone:
            return
        if connection.logs_access:
            log_request(self._scope, status)
        fields, body = failure_of(status)
        connection.keeps_alive = False
        connection.write(whole_response(status, fields, body))
        connection.answered()

    def _write(self, status: int, body: bytes | None, headers: list[Field]) -> None:
        """Write an answer, its head and body at once."""
        connection = self._connection
        if self._is_gone:
            return
        fields = (*headers, *self._added)
        if body is not None:
            fields = ((b"content-type", self._exchange.media_type), *fields)
        if not connection.keeps_alive:
            fields = (*fields, (b"connection", b"close"))
        if status == 204:
            written = response_head(status, fields)
        else:
            written = whole_response(status, fields, body or b"")
        if connection.logs_access:
            log_request(self._scope, status)
        connection.write(written)
        connection.answered()

    # -- what the connection calls ---------------------------------------------------------------

    def feed(self, piece: bytes) -> None:
        """Take nothing: the body is here."""

    def end_body(self) -> None:
        """Take nothing: the body is here."""

    def leave(self, then: Callable[[], object]) -> bool:
        """Return false: nothing is read any more."""
        return False

    def disconnect(self) -> None:
        """Note that the client has gone; the turn goes on."""
        self._is_gone = True

    def give_up(self) -> None:
        """Say that the server ended before the answer was there."""
        self._refuse(OverloadedError("the server shut down before the answer was there"))
        self._is_gone = True


def _own(scope: Scope) -> Scope:
    """Return a scope like that of all requests with a head, for one, whose app may change it."""
    own = {**scope, "headers": list(scope["headers"]), "state": dict(scope["state"])}
    if "extensions" in scope:
        own["extensions"] = dict(scope["extensions"])
    return own
