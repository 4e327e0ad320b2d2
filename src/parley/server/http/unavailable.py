"""The handler of a process without agents (a worker): it refuses every request."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from parley.model.errors import A2AError, OverloadedError
from parley.server.address import route_path
from parley.server.http.body import BodyTooLarge, ClientGone, read_body
from parley.server.http.media_types import answered_with
from parley.server.http.responses import NO_STORE, reply, reply_without_body
from parley.server.limits.byte_budget import ByteReservation
from parley.server.settings import Settings
from parley.wire import jsonrpc, versions


class Unavailable:
    """Refuses every request with ``message``, in the format that its client reads.

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
            except (BodyTooLarge, A2AError):
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
