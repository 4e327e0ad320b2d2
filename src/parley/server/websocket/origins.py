"""Which pages may open WebSockets (RFC 6455 §10.2): browsers ask nobody before, so servers check.

Cookies and the network that a browser is in would be those of its user, whatever page asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import Scope

from parley.server.address import BadAddress, server_address

_ANY = "*"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class OriginNotAllowed(Exception):
    """The page that asks is of another origin."""


class AllowedOrigins:
    """The origins whose pages may open sockets: the server's own, and ``cors_origins``.

    Clients that are no browsers send no origin, and pass.
    """

    def __init__(self, allowed: Iterable[str], *, url: str | None, trust_proxy: bool) -> None:
        self._allowed = {_origin(each) for each in allowed if each != _ANY}
        self._is_open = _ANY in allowed
        self._own = None if url is None else _origin(url)
        self._trust_proxy = trust_proxy

    def check(self, scope: Scope) -> None:
        """Raise ``OriginNotAllowed`` for a page of another origin."""
        given = [value for name, value in scope["headers"] if name == b"origin"]
        if not given or self._is_open:
            return
        origin = _origin(given[0].decode("latin-1")) if len(given) == 1 else ""
        if origin and (origin in self._allowed or origin == self._own or origin == self._of(scope)):
            return
        raise OriginNotAllowed(
            "pages of this origin may not open a WebSocket here; if they are meant to, add the "
            "origin to cors_origins (parley.Settings), or, behind a proxy, have the server know "
            "its public address (url, or trust_proxy)"
        )

    def _of(self, scope: Scope) -> str:
        """Return the origin that the request was sent to."""
        try:
            return _origin(server_address(scope, trust_proxy=self._trust_proxy))
        except BadAddress:
            return ""


def _origin(address: str) -> str:
    """Return the origin of an address in one form, empty if it has none (``null``)."""
    try:
        parts = urlsplit(address)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return ""
    if not parts.hostname or port is None:
        return ""
    return f"{parts.scheme}://{parts.hostname}:{port}"
