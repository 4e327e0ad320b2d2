"""Refuses requests that name another server's host (421)."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from parley.model.errors import InvalidRequestError
from parley.server.hosts import HostNotAllowed
from parley.server.http.files import FilesBinding
from parley.server.http.http_json import HttpJsonBinding
from parley.server.http.jsonrpc import JsonRpcBinding
from parley.server.http.media_types import answered_with
from parley.server.http.responses import NO_STORE, reply, reply_with_message
from parley.wire import jsonrpc, versions


class Misdirected(InvalidRequestError):
    """The request is for another server."""

    http_status = 421


def refusing_host(handler: ASGIApp, error: HostNotAllowed) -> ASGIApp:
    """Return the app that refuses a request in the format of ``handler``."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await _refuse(handler, error, scope, send)

    return refuse


async def _refuse(handler: ASGIApp, error: HostNotAllowed, scope: Scope, send: Send) -> None:
    """Refuse a request in the format of ``handler``, without reading its body."""
    handler = getattr(handler, "otherwise", handler)  # behind what takes some of its paths
    named = dict(scope["headers"]).get(b"a2a-version", b"").decode("latin-1")
    version = versions.supported_for(named) or versions.LATEST
    kind = Misdirected if error.status == Misdirected.http_status else InvalidRequestError
    refusal = kind(str(error))
    headers = [NO_STORE, (b"a2a-version", version.encode())]
    if isinstance(handler, JsonRpcBinding) and scope["method"] == "POST":
        written = versions.dialect(version).jsonrpc.write_error(refusal)
        await reply(send, error.status, jsonrpc.error_response(None, written), headers)
    elif isinstance(handler, HttpJsonBinding | FilesBinding) and scope["method"] != "HEAD":
        codec = versions.dialect(version).http_json
        body = codec.write_error(refusal)
        media_type = answered_with(codec.media_type.encode(), scope["headers"])
        await reply(send, error.status, body, headers, media_type)
    else:
        await reply_with_message(scope, send, error.status, str(error), [NO_STORE])
