"""Handlers that reject requests: restricted endpoints, other hosts, a server without agents."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.model.errors import A2AError, InvalidRequestError, OverloadedError
from parley.server.address import HostNotAllowed, route_path
from parley.server.http.files import FilesBinding
from parley.server.http.http_json import HttpJsonBinding
from parley.server.http.jsonrpc import JsonRpcBinding
from parley.server.http.responses import (
    NO_STORE,
    ClientGone,
    answered_with,
    read_body,
    reply,
    reply_with_error,
    reply_with_message,
    reply_without_body,
)
from parley.server.limits import ByteReservation
from parley.server.log import failure_of
from parley.server.restrictions import Gate, NotVisible
from parley.server.settings import Settings
from parley.server.websocket.admission import refused_by, takes_sockets
from parley.wire import jsonrpc, versions


class Restricted:
    """Passes on the requests that a gate admits, and keeps shared caches from storing the answers.

    An address that may not see the endpoint gets ``elsewhere``, as for an unknown path; an
    unauthenticated caller gets 401, with the challenges. ``varies`` are the headers with the
    credentials of callers.
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
        except Exception as error:
            answer = _refusing(failure_of(error, "identifying a caller"))
        else:
            sending = send if is_socket else _private(send, self._varies)
            await self._app(scope, receive, sending)
            return
        if is_socket:
            answer = refused_by(answer)
        await answer(scope, receive, send)


def _refusing(error: A2AError) -> ASGIApp:
    """Return an app that rejects a request with an error."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await reply_with_error(scope, send, error)

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


class Misdirected(InvalidRequestError):
    """The request is for another server."""

    http_status = 421


def refusing_host(handler: ASGIApp, error: HostNotAllowed) -> ASGIApp:
    """Return an app that rejects a request in the format of ``handler``, without reading its
    body."""
    binding = getattr(handler, "otherwise", handler)  # below a handler of some of its paths
    kind = Misdirected if error.status == Misdirected.http_status else InvalidRequestError

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        named = dict(scope["headers"]).get(b"a2a-version", b"").decode("latin-1")
        version = versions.supported_for(named) or versions.LATEST
        refusal = kind(str(error))
        headers = [NO_STORE, (b"a2a-version", version.encode())]
        if isinstance(binding, JsonRpcBinding) and scope["method"] == "POST":
            written = versions.dialect(version).jsonrpc.write_error(refusal)
            await reply(send, error.status, jsonrpc.error_response(None, written), headers)
        elif isinstance(binding, HttpJsonBinding | FilesBinding) and scope["method"] != "HEAD":
            codec = versions.dialect(version).http_json
            body = codec.write_error(refusal)
            media_type = answered_with(codec.media_type.encode(), scope["headers"])
            await reply(send, error.status, body, headers, media_type)
        else:
            await reply_with_message(scope, send, error.status, str(error), [NO_STORE])

    return refuse


class Unavailable:
    """Rejects every request with ``message``, in the format that its client reads.

    The status is 503, because a retry may reach a replica with agents.
    """

    def __init__(self, message: str, settings: Settings, request_bytes: ByteReservation) -> None:
        self._message = message
        self._request_bytes = request_bytes
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        rpc: jsonrpc.RpcRequest | None = None
        request_headers = dict(scope["headers"])
        if scope["method"] == "POST":
            try:
                length = request_headers.get(b"content-length")
                limit = self._settings.max_body_bytes
                body = await read_body(receive, scope, length, limit, self._request_bytes)
                rpc = jsonrpc.parse_request(body)
            except ClientGone:
                return
            except A2AError:
                pass
        error = OverloadedError(self._message, retry_after=1)
        version = versions.supported_for(request_headers.get(b"a2a-version", b"").decode("latin-1"))
        headers = [(b"retry-after", b"1"), NO_STORE]
        if version is not None:
            headers.append((b"a2a-version", version.encode()))
        if scope["method"] == "HEAD" or (rpc is not None and rpc.is_notification):
            await reply_without_body(send, error.http_status, headers)
        elif rpc is not None:
            codec = versions.dialect(version or versions.DEFAULT_VERSION).jsonrpc
            answer = jsonrpc.error_response(rpc.id, codec.write_error(error))
            await reply(send, error.http_status, answer, headers)
        else:
            is_v0_3 = route_path(scope).startswith("/v1/")
            version = version or (versions.DEFAULT_VERSION if is_v0_3 else versions.LATEST)
            http_json = versions.dialect(version).http_json
            media_type = answered_with(http_json.media_type.encode(), scope["headers"])
            answer = http_json.write_error(error)
            await reply(send, error.http_status, answer, headers, media_type)
