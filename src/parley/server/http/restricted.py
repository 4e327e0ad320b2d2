"""An endpoint that not everyone may see (``Settings.restrict``)."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.model.errors import A2AError
from parley.server.failures import log_unforeseen
from parley.server.http.exchange import error_headers
from parley.server.http.responses import NO_STORE, Headers, reply_with_message
from parley.server.restrictions import Gate, NotVisible
from parley.server.websocket.admission import takes_sockets
from parley.server.websocket.denial import refused_by


class Restricted:
    """Passes requests on that a gate admits, and keeps shared caches from holding the answers.

    An address that may not see the endpoint gets what is ``elsewhere``, as where there is nothing;
    who does not prove who they are gets 401, with the challenges. ``varies`` are the headers that
    callers show who they are with.
    """

    def __init__(
        self, app: ASGIApp, gate: Gate, elsewhere: ASGIApp, *, varies: Iterable[bytes] = ()
    ) -> None:
        self._app = app
        self._varies = b", ".join(varies)
        self._gate = gate
        self._elsewhere = elsewhere

    @property
    def takes_sockets(self) -> bool:
        """Whether WebSockets can be opened here."""
        return takes_sockets(self._app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        is_socket = scope["type"] == "websocket"
        try:
            await self._gate.check(scope)
        except NotVisible:
            answer = self._elsewhere
        except A2AError as error:
            answer = _refusing(error, error_headers(error))
        except Exception:
            answer = _refusing(log_unforeseen("identifying a caller"), ())
        else:
            sending = send if is_socket else _private(send, self._varies)
            await self._app(scope, receive, sending)
            return
        if is_socket:
            answer = refused_by(answer)
        await answer(scope, receive, send)


def _refusing(error: A2AError, headers: Headers) -> ASGIApp:
    """Return the app that refuses a request with an error."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        status, message = error.http_status, error.message
        await reply_with_message(scope, send, status, message, [NO_STORE, *headers])

    return refuse


def _private(send: Send, varies: bytes) -> Send:
    """Return a ``send`` that turns ``Cache-Control: public`` into ``private``, with ``Vary``."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                (name, value.replace(b"public", b"private") if name == b"cache-control" else value)
                for name, value in message["headers"]
            ]
            if varies:
                headers.append((b"vary", varies))
            message = {**message, "headers": headers}
        await send(message)

    return sending
