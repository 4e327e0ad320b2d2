"""Where a request was sent to, as its sender sees it."""

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
"""The headers by which a trusted proxy says how a server is reached."""

FORWARDED_SCHEME = (
    b"X-Forwarded-Proto",
    b"X-Forwarded-Protocol",
    b"X-Forwarded-Ssl",
    b"Forwarded",
)
"""The headers by which ASGI servers let a peer change the scheme of a request."""

_SCHEME_CLAIMS = frozenset(name.lower() for name in FORWARDED_SCHEME)


NOT_A_HOST = "the Host header is not a host name or address, with or without a port"


class BadAddress(Exception):
    """The request names a host that cannot be one."""


def route_path(scope: Scope) -> str:
    """Return the path below where the app is mounted, beginning with a slash.

    ``scope["path"]`` holds the mount's own path too, unless a proxy took it off.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root):
        rest = path[len(root) :]
        if not rest or rest[0] == "/" or root[-1] == "/":
            path = rest
    return path if path[:1] == "/" else f"/{path}"


def server_address(scope: Scope, *, trust_proxy: bool = False) -> str:
    """Return the address at which the app is reached, without a slash at its end.

    Made of scheme, host and the path that the app is mounted at; with ``trust_proxy`` what the
    proxy in front of the server says about them counts. Without it no such header does, also where
    the ASGI server believes them: uvicorn sets the scheme from ``X-Forwarded-Proto`` when the peer
    is on this machine, and does not tell. So a request with such a header came by https only if
    the server names its TLS (ASGI's ``tls`` extension).

    Raises ``BadAddress`` when the host, or what the proxy says, is malformed: a card must never
    carry what somebody put into a header.
    """
    names = {name: value.decode("latin-1") for name, value in scope["headers"]}
    scheme: str = scope.get("scheme", "http")
    host = names.get(b"host", "")
    mount = quote(scope.get("root_path", ""), safe="/~!$&'()*+,;=:@")
    prefix = ""
    if trust_proxy:
        scheme = first(names.get(b"x-forwarded-proto", "")) or scheme
        host = first(names.get(b"x-forwarded-host", "")) or host
        prefix = first(names.get(b"x-forwarded-prefix", "")).rstrip("/")
    elif scheme == "https" and not _SCHEME_CLAIMS.isdisjoint(names):
        scheme = "https" if "tls" in (scope.get("extensions") or ()) else "http"
    if not host:
        host = _own_host(scope)
    if scheme not in ("http", "https"):
        raise BadAddress(f"{scheme!r} is not a scheme that an agent is reached by")
    if split_host(host) is None:
        raise BadAddress(NOT_A_HOST)
    if not _PREFIX.fullmatch(prefix):
        raise BadAddress("the X-Forwarded-Prefix header is not a path")
    return f"{scheme}://{host.lower()}{prefix}{mount.rstrip('/')}"


def split_host(host: str) -> tuple[str, str] | None:
    """Return the name and the port of a ``Host`` header, or ``None`` for what cannot be one.

    The name is as names are compared: in lower case, without a dot at its end, and an IPv6 address
    without brackets, in its shortest form. The port is empty where there is none.
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


def first(header: str) -> str:
    """Return what the outermost proxy said."""
    return header.partition(",")[0].strip()


def _own_host(scope: Scope) -> str:
    """Return the server's own address, for a request without a Host (HTTP/1.0)."""
    name, port = scope.get("server") or ("localhost", None)
    if ":" in name:
        name = f"[{name}]"
    return f"{name}:{port}" if port else name
