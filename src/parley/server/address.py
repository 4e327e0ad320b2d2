"""The address that a request was sent to, as its sender sees it."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import quote

from starlette.types import Scope

_HOST = re.compile(
    r"(?:[A-Za-z0-9._~-]{1,253}|\[(?P<ipv6>[0-9A-Fa-f:.]{2,45})\])(?::(?P<port>\d{1,5}))?"
)
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~%!$&'()*+,;=:@-]+)*/?")

FORWARDED_ADDRESS = (b"X-Forwarded-Host", b"X-Forwarded-Proto", b"X-Forwarded-Prefix")
"""The headers in which a trusted proxy states the public address of a server."""

FORWARDED_SCHEME = (b"X-Forwarded-Proto", b"X-Forwarded-Protocol", b"X-Forwarded-Ssl", b"Forwarded")
"""The headers by which ASGI servers let a peer change the scheme of a request."""

_SCHEME_CLAIMS = frozenset(name.lower() for name in FORWARDED_SCHEME)

_OF_SOCKETS = {"ws": "http", "wss": "https"}

NOT_A_HOST = "the Host header is not a host name or address, with or without a port"


class BadAddress(Exception):
    """The request names an invalid host, scheme or prefix."""


def route_path(scope: Scope) -> str:
    """Return the path below the app's mount point, with a leading slash.

    ``scope["path"]`` includes the mount point, unless a proxy removed it.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root):
        rest = path[len(root) :]
        if not rest or rest[0] == "/" or root[-1] == "/":
            path = rest
    return path if path[:1] == "/" else f"/{path}"


def server_address(scope: Scope, *, trust_proxy: bool = False) -> str:
    """Return the URL of the app: scheme, host and mount point, without a trailing slash.

    With ``trust_proxy`` the ``X-Forwarded-*`` headers count; without it none does, even where the
    ASGI server believes them. uvicorn sets the scheme from ``X-Forwarded-Proto`` when the peer is
    on this machine, and leaves no trace of that. So a request with such a header counts as https
    only if the server names its TLS (ASGI's ``tls`` extension).

    Raises ``BadAddress`` for a malformed host or header: a card must never carry one.
    """
    names = {name: value.decode("latin-1") for name, value in scope["headers"]}
    scheme: str = scope.get("scheme", "http")
    host = names.get(b"host", "")
    mount = quote(scope.get("root_path", ""), safe="/~!$&'()*+,;=:@")
    prefix = ""
    if trust_proxy:
        scheme = outermost(names.get(b"x-forwarded-proto", "")) or scheme
        host = outermost(names.get(b"x-forwarded-host", "")) or host
        prefix = outermost(names.get(b"x-forwarded-prefix", "")).rstrip("/")
    elif scheme in ("https", "wss") and not _SCHEME_CLAIMS.isdisjoint(names):
        scheme = "https" if "tls" in (scope.get("extensions") or ()) else "http"
    if not host:
        host = _server_host(scope)
    scheme = _OF_SOCKETS.get(scheme, scheme)
    if scheme not in ("http", "https"):
        raise BadAddress(f"{scheme!r} is not a scheme that an agent is reached by")
    if split_host(host) is None:
        raise BadAddress(NOT_A_HOST)
    if not _PREFIX.fullmatch(prefix):
        raise BadAddress("the X-Forwarded-Prefix header is not a path")
    return f"{scheme}://{host.lower()}{prefix}{mount.rstrip('/')}"


def split_host(host: str) -> tuple[str, str] | None:
    """Return the name and the port of a ``Host`` header, or ``None`` if it is invalid.

    The name is normalised for comparison: lower case, no trailing dot, an IPv6 address in its
    shortest form without brackets. A missing port is empty.
    """
    match = _HOST.fullmatch(host)
    if match is None or int(match["port"] or 0) > 65535:
        return None
    port = match["port"] or ""
    if match["ipv6"] is None:
        name = host.partition(":")[0].lower().rstrip(".")
        return (name, port) if name else None
    try:
        return IPv6Address(match["ipv6"]).compressed, port
    except AddressValueError:
        return None


def outermost(header: str) -> str:
    """Return the value of the outermost proxy, the first of a list."""
    return header.partition(",")[0].strip()


def _server_host(scope: Scope) -> str:
    """Return the server's own address, for a request without a Host (HTTP/1.0)."""
    name, port = scope.get("server") or ("localhost", None)
    if ":" in name:
        name = f"[{name}]"
    return f"{name}:{port}" if port else name
