"""What answers where there is no agent, because the process is for something else."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from parley.model.errors import A2AError, OverloadedError
from parley.server.address import route_path
from parley.server.byte_budget import ByteReservation
from parley.server.http.body import BodyTooLarge, ClientGone, read_body
from parley.server.http.media_types import answered_with
from parley.server.http.responses import NO_STORE, reply, reply_without_body
from parley.server.settings import Settings
from parley.wire import jsonrpc, versions


class Unavailable:
    """Refuses every request, in the form that its client reads, with ``words`` that say why.

    Whoever comes here was sent wrong, and will find an agent elsewhere: so it is 503, and a client
    that tries again may get there.
    """

    def __init__(self, words: str, settings: Settings, held: ByteReservation) -> None:
        self._words = words
        self._held = held
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        asked: jsonrpc.RpcRequest | None = None
        given = dict(scope["headers"])
        if scope["method"] == "POST":
            try:
                length = given.get(b"content-length")
                most = self._settings.max_body_bytes
                body = await read_body(receive, scope, length, most, self._held)
                asked = jsonrpc.parse_request(body)
            except ClientGone:
                return
            except (BodyTooLarge, A2AError):
                pass
        error = OverloadedError(self._words, retry_after=1)
        version = versions.supported_for(given.get(b"a2a-version", b"").decode("latin-1"))
        headers = [(b"retry-after", b"1"), NO_STORE]
        if version is not None:
            headers.append((b"a2a-version", version.encode()))
        if scope["method"] == "HEAD" or (asked is not None and asked.is_notification):
            await reply_without_body(send, error.http_status, headers)
        elif asked is not None:
            codec = versions.dialect(version or versions.DEFAULT_VERSION).jsonrpc
            answer = jsonrpc.error_response(asked.id, codec.write_error(error))
            await reply(send, error.http_status, answer, headers)
        else:
            is_older = route_path(scope).startswith("/v1/")
            version = version or (versions.DEFAULT_VERSION if is_older else versions.LATEST)
            http_json = versions.dialect(version).http_json
            media_type = answered_with(http_json.media_type.encode(), scope["headers"])
            answer = http_json.write_error(error)
            await reply(send, error.http_status, answer, headers, media_type)
