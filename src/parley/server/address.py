"""The address that a request was sent to, and the hosts that a server accepts.

A web page can point its own name to 127.0.0.1 (DNS rebinding). The browser then treats a server on
this machine as the page's own, and lets the page call it and read the answers. The ``Host`` header
reveals such a request: it names the page's host, not the server's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import quote, urlsplit

from starlette.types import Scope

from parley.model.errors import InvalidRequestError
from parley.security.networks import is_loopback, literal_address

# -- allowed hosts ----------------------------------------------------------------------------

ANY = "*"

_MAX_CACHED = 1024
_DEFAULT_PORTS = ("80", "443")
_FORWARDED_HOST = b"x-forwarded-host"
_SUBDOMAINS = "*."
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


class HostNotAllowed(Exception):
    """The request names a host that the server does not accept. ``status`` is for HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class AllowedHosts:
    """The hosts that a server accepts.

    On a connection to a loopback address: the server's own names (``localhost``, any loopback
    address, the name that it is bound to), the host of ``url``, and ``allowed``. With
    ``trust_proxy`` a request with ``X-Forwarded-*`` headers passes, because it comes from the
    proxy. On other connections: every host, because the names of a machine are unknown, unless
    ``allowed`` lists them. The address of the connection itself is always allowed. Ports matter
    only where ``allowed`` names one.

    Decisions are cached for the last hosts named. ``revision`` is how often they changed.
    """

    def __init__(
        self, allowed: Iterable[str] = (), *, url: str | None = None, trust_proxy: bool = False
    ) -> None:
        patterns = tuple(allowed)
        self._is_restricted = bool(patterns)
        self._trust_proxy = trust_proxy
        self._names: set[tuple[str, str]] = set()
        self._suffixes: list[tuple[str, str]] = []
        for pattern in patterns:
            found = split_host(pattern.removeprefix(_SUBDOMAINS))
            if found is None:
                continue
            if pattern.startswith(_SUBDOMAINS):
                self._suffixes.append((f".{found[0]}", found[1]))
            else:
                self._names.add(found)
        if url is not None:
            public = split_host(urlsplit(url).netloc.rpartition("@")[2])
            if public is not None:
                self._names.add((public[0], ""))
        self._checked: tuple[bytes, ...] = (b"host",)
        if ANY in patterns:
            self._checked = ()
        elif trust_proxy and patterns:
            self._checked = (b"host", _FORWARDED_HOST)
        self._bound = ""
        self._is_open = False
        self._admitted: set[tuple[str, bytes]] = set()
        self.revision = 0
        self.serves_itself = False

    @property
    def is_on_loopback(self) -> bool:
        """True if a server of this package listens for the app, on this machine only."""
        return self.serves_itself and not self._is_open

    def listens(self, host: str, addresses: Iterable[str]) -> None:
        """Record that a server of this package listens for the app, on the addresses of ``host``.

        From then on it counts as on loopback if all these addresses are loopback addresses.
        """
        self.serves_itself = True
        self._is_open = not all(map(is_loopback, addresses))
        self._bound = host.lower().rstrip(".")
        self.revision += 1
        self._admitted.clear()

    def check(self, scope: Scope) -> None:
        """Raise ``HostNotAllowed`` for a request that names another server's host.

        A request without a host (HTTP/1.0) does not come from a browser, and is accepted.
        """
        server = scope.get("server")
        local_address = server[0] or "" if server else ""
        checked, admitted = self._checked, self._admitted
        for name, value in scope["headers"]:
            if name in checked and (local_address, value) not in admitted:
                self._decide(local_address, name, value, scope)

    def _decide(self, local_address: str, header: bytes, value: bytes, scope: Scope) -> None:
        """Decide about an uncached host, on a connection to ``local_address``."""
        is_local = not self._is_open and is_loopback(local_address)
        if is_local or self._is_restricted:
            names = (name for name, _ in scope["headers"])
            is_forwarded = any(name.startswith(b"x-forwarded-") for name in names)
            if self._trust_proxy and not self._is_restricted and is_forwarded:
                return
            host = value.decode("latin-1")
            if header == _FORWARDED_HOST:
                host = outermost(host)
            if not host and header == _FORWARDED_HOST:
                return
            found = split_host(host)
            if found is None:
                raise HostNotAllowed(NOT_A_HOST, 400)
            if not self._is_allowed(*found, local_address):
                raise HostNotAllowed(self._explanation(host), 421)
        if len(self._admitted) >= _MAX_CACHED:
            self._admitted.clear()
        self._admitted.add((local_address, value))

    def _is_allowed(self, name: str, port: str, local_address: str) -> bool:
        if name == self._bound or (is_loopback(name) and is_loopback(local_address)):
            return True
        address = literal_address(name)
        if address is not None and address == literal_address(local_address):
            return True
        ports = {port, ""} if port else {"", *_DEFAULT_PORTS}
        if any((name, each) in self._names for each in ports):
            return True
        return any(name.endswith(end) and each in ports for end, each in self._suffixes)

    def _explanation(self, host: str) -> str:
        if self._is_restricted:
            return (
                f"this server answers to the hosts of its setting allowed_hosts, and {host} is "
                f"none of them; add it there (parley serve --allowed-host {host}) if it is meant to"
            )
        proxy = "trust the proxy that passes the host on (trust_proxy)"
        if self._trust_proxy:
            proxy = "have the trusted proxy send X-Forwarded-Host"
        return (
            f"this server is for this machine alone, and does not answer to the host {host}; if it "
            "is meant to, add the host to the setting allowed_hosts (parley serve --allowed-host "
            f"{host}), name the public address in url, or {proxy}"
        )


def is_pattern(pattern: object) -> bool:
    """Return whether this is valid in ``allowed_hosts``: a host, ``*.`` and a host, or ``*``.

    A host may have a port; an IPv6 address is in brackets.
    """
    if not isinstance(pattern, str) or pattern == ANY:
        return pattern == ANY
    found = split_host(pattern.removeprefix(_SUBDOMAINS))
    if found is None:
        return False
    return _NAME.fullmatch(found[0]) is not None or pattern.startswith("[")


# -- address ----------------------------------------------------------------------------------

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


class BadAddress(InvalidRequestError):
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

    With ``trust_proxy`` the ``X-Forwarded-*`` headers are used; without it none is, even if the
    ASGI server trusts them. uvicorn sets the scheme from ``X-Forwarded-Proto`` when the peer is on
    this machine, and leaves no trace of that. So a request with such a header counts as https only
    if the server names its TLS (ASGI's ``tls`` extension).

    Raises ``BadAddress`` for a malformed host or header: a card must never contain one.
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
        raise BadAddress(f"{scheme!r} is not a scheme under which agents are served")
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
