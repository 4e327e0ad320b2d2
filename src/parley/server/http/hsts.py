"""HSTS: browsers are told to come back over HTTPS only (RFC 6797)."""

from __future__ import annotations

from starlette.types import Message, Scope, Send

from parley.security.networks import literal_address
from parley.server.address import split_host

AddedFields = tuple[tuple[bytes, bytes], ...]

_NAME = b"strict-transport-security"


def hsts_fields(scope: Scope, max_age: int) -> AddedFields:
    """Return the header, if an answer gets it: those over HTTPS do, unless ``max_age`` is 0.

    Names of this machine do not get it, because it counts for all ports of a host; addresses do
    not, because browsers ignore it there.
    """
    if scope.get("scheme") != "https" or not max_age or not _is_public_name(scope):
        return ()
    return ((_NAME, b"max-age=%d" % max_age),)


def with_hsts(send: Send, fields: AddedFields) -> Send:
    """Return a ``send`` that adds the header. One that the app itself has set stays."""
    if not fields:
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers") or ())
            if all(name.lower() != _NAME for name, _ in headers):
                headers += fields
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
