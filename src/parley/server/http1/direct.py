"""A request that its exchange answers on the connection: no ASGI messages, and mostly no task.

It identifies the caller once for each request. Where the answer takes time, or is a stream, it
continues as a request of an ASGI app.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from parley.model.errors import OverloadedError
from parley.model.service import ANONYMOUS, Caller
from parley.server.http.exchange import AgentRequests, HttpAnswer, Identify, LaterAnswer
from parley.server.http.responses import with_hsts
from parley.server.http1.asgi import AnsweredOn, failure_of
from parley.server.http1.head import response_head, whole_response
from parley.server.log import log_request

_log = logging.getLogger("parley.server")


class DirectlyAnsweredOn(AnsweredOn, Protocol):
    """The connection that a request came on."""

    def go_on(self, app: ASGIApp, scope: Scope) -> None:
        """Continue with the request in an ASGI app: its body was read."""
        ...

    def run_task(self, answering: Coroutine[Any, Any, None]) -> None:
        """Run a part of the answer in a task, which the end of the server waits for."""
        ...

    def forget_head(self) -> None:
        """Forget the head of the request: its answer may take hours."""
        ...


class DirectExchange:
    """One request with its body, on a connection. ``begin`` answers it, now or later.

    ``held`` is the size of the body, while it waits until its caller is known.
    """

    __slots__ = ("_added", "_connection", "_exchange", "_is_gone", "_scope", "held")

    has_started = False

    def __init__(self, connection: DirectlyAnsweredOn, requests: AgentRequests) -> None:
        self._connection = connection
        self._exchange = requests.exchange()
        self._scope = requests.scope
        self._added = requests.added
        self.held = 0
        self._is_gone = False

    def begin(self, body: bytes) -> None:
        """Find out who calls, and answer."""
        identify = self._exchange.served.identify
        if identify is None:
            self._exchange.answer(body, ANONYMOUS, self._answered)
        else:
            # Context variables of the author's function stay in it, as in a task.
            copy_context().run(self._identify, identify, body)

    def _identify(self, identify: Identify, body: bytes) -> None:
        """Identify the caller, once, with a scope of its own."""
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
        """HttpAnswer once the caller is known, unless the client has gone."""
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
        """Write an answer, its head and body at once."""
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
        else:
            self._end(status, written)

    def _write_failure(self, status: int) -> None:
        """Say that there is no answer, as is said of any ASGI app, and close."""
        self._connection.keeps_alive = False
        if not self._is_gone:
            self._end(status, whole_response(status, *failure_of(status)))

    def _end(self, status: int, written: bytes) -> None:
        connection = self._connection
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
        error = OverloadedError("the server shut down before the answer was there")
        self._write(self._exchange.refusal(error))
        self._is_gone = True


def _own(scope: Scope) -> Scope:
    """Return a scope like that of all requests with a head, for one, whose app may change it."""
    own = {**scope, "headers": list(scope["headers"]), "state": dict(scope["state"])}
    if "extensions" in scope:
        own["extensions"] = dict(scope["extensions"])
    return own
