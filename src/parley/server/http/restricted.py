"""An endpoint that not everyone may see (``Settings.restrict``)."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.model.errors import A2AError
from parley.server.failures import log_unforeseen
from parley.server.http.exchange import error_headers
from parley.server.http.responses import NO_STORE, reply_with_message
from parley.server.restrictions import Gate, NotVisible


class Restricted:
    """Passes requests on that a gate admits, and keeps shared caches from holding the answers.

    An address that may not see the endpoint gets what is ``elsewhere``, as where there is nothing;
    who does not prove who they are gets 401, with the challenges.
    """

    def __init__(self, app: ASGIApp, gate: Gate, elsewhere: ASGIApp) -> None:
        self._app = app
        self._gate = gate
        self._elsewhere = elsewhere

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            await self._gate.check(scope)
        except NotVisible:
            await self._elsewhere(scope, receive, send)
            return
        except A2AError as error:
            headers = [NO_STORE, *error_headers(error)]
            await reply_with_message(scope, send, error.http_status, error.message, headers)
            return
        except Exception:
            failure = log_unforeseen("identifying a caller")
            await reply_with_message(scope, send, 500, failure.message, [NO_STORE])
            return
        await self._app(scope, receive, _private(send))


def _private(send: Send) -> Send:
    """Return a ``send`` that turns ``Cache-Control: public`` into ``private``."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                (name, value.replace(b"public", b"private") if name == b"cache-control" else value)
                for name, value in message["headers"]
            ]
            message = {**message, "headers": headers}
        await send(message)

    return sending
