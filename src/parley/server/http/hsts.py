"""HSTS: browsers are told to come back over HTTPS only (RFC 6797)."""

from __future__ import annotations

from starlette.types import Message, Scope, Send

from parley.security.loopback import literal_address
from parley.server.address import split_host

_NAME = b"strict-transport-security"


def with_hsts(scope: Scope, send: Send, max_age: int) -> Send:
    """Return a ``send`` that adds the header to an answer over HTTPS.

    Names of this machine do not get it, because it counts for all ports of a host; addresses do
    not, because browsers ignore it there. A header that the app itself has set stays.
    """
    if not _is_public_name(scope):
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers") or ())
            if all(name.lower() != _NAME for name, _ in headers):
                headers.append((_NAME, b"max-age=%d" % max_age))
            message = {**message, "headers": headers}
        await send(message)

    return sending


def _is_public_name(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"host":
            host = split_host(value.decode("latin-1"))
            if host is None or literal_address(host[0]) is not None:
                return False
            return host[0] != "localhost" and not host[0].endswith(".localhost")
    return False
