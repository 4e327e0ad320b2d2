"""Checks the host that a request names, against DNS rebinding.

A web page can point its own name to 127.0.0.1. The browser then treats a server on this machine as
the page's own, and lets the page call it and read the answers. The ``Host`` header reveals such a
request: it names the page's host, not the server's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import Scope

from parley.security.networks import is_loopback, literal_address
from parley.server.address import NOT_A_HOST, outermost, split_host

ANY = "*"

_MAX_CACHED = 1024
_DEFAULT_PORTS = ("80", "443")
_FORWARDED_HOST = b"x-forwarded-host"
_SUBDOMAINS = "*."
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


class HostNotAllowed(Exception):
    """The request names a host that the server does not answer to. ``status`` is for HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class AllowedHosts:
    """The hosts that a server answers to.

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
        """Whether a server of this package listens for the app, on this machine alone."""
        return self.serves_itself and not self._is_open

    def listens(self, host: str, addresses: Iterable[str]) -> None:
        """Note that a server of this package listens for the app, on the addresses of ``host``.

        From then on it counts as on loopback if all these addresses are.
        """
        self.serves_itself = True
        self._is_open = not all(map(is_loopback, addresses))
        self._bound = host.lower().rstrip(".")
        self.revision += 1
        self._admitted.clear()

    def check(self, scope: Scope) -> None:
        """Raise ``HostNotAllowed`` for a request that names another server's host.

        A request without a host (HTTP/1.0) comes from no browser, and passes.
        """
        server = scope.get("server")
        local_address = server[0] or "" if server else ""
        checked, admitted = self._checked, self._admitted
        for name, value in scope["headers"]:
            if name in checked and (local_address, value) not in admitted:
                self._decide(local_address, name, value, scope)

    def _decide(self, local_address: str, header: bytes, value: bytes, scope: Scope) -> None:
        """Decide about a host that is not cached, on a connection to ``local_address``."""
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
