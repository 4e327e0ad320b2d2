"""Which hosts a request may name, so that no page elsewhere can call a server on this machine.

A page can have its own name point to 127.0.0.1 (DNS rebinding). The browser then takes what listens
there for the page's own server, and lets the page call it and read the answers. What gives such a
request away is its ``Host``: the name of the page, not one of the server's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import Scope

from parley.security.loopback import is_loopback, literal_address
from parley.server.address import NOT_A_HOST, first, split_host

ANY = "*"

_MOST_KEPT = 1024
_DEFAULT_PORTS = ("80", "443")
_FORWARDED_HOST = b"x-forwarded-host"
_BELOW = "*."
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


class NotOurHost(Exception):
    """The request names a host that this server does not answer to; ``status`` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Hosts:
    """The hosts that a server answers to.

    Over a connection to a loopback address, these are its own names (``localhost``, any loopback
    address, the name that it was bound to), that of ``url``, and ``allowed``. With ``trust_proxy``
    also those that a proxy passes on: a request with ``X-Forwarded-*`` headers counts as the
    proxy's. Over other connections every host is answered to, because the names of a machine are
    not known, unless ``allowed`` says which. The address that a connection was made to is always
    one of the server's names. The port does not matter, unless ``allowed`` names one.

    What was decided is kept for the last hosts that were named.
    """

    def __init__(
        self, allowed: Iterable[str] = (), *, url: str | None = None, trust_proxy: bool = False
    ) -> None:
        patterns = tuple(allowed)
        self._is_set = bool(patterns)
        self._trust_proxy = trust_proxy
        self._names: set[tuple[str, str]] = set()
        self._suffixes: list[tuple[str, str]] = []
        for pattern in patterns:
            found = split_host(pattern.removeprefix(_BELOW))
            if found is None:
                continue
            if pattern.startswith(_BELOW):
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
        self.serves_itself = False

    def listens(self, host: str, addresses: Iterable[str]) -> None:
        """Say that a server of this package listens for the app, on the addresses of ``host``.

        It then is on loopback when all its addresses are, whichever a connection was made to.
        """
        self.serves_itself = True
        self._is_open = not all(map(is_loopback, addresses))
        self._bound = host.lower().rstrip(".")
        self._admitted.clear()

    def check(self, scope: Scope) -> None:
        """Raise ``NotOurHost`` for a request that names a host that is not the server's.

        One that names none (HTTP/1.0) is not from a browser, and passes.
        """
        server = scope.get("server")
        here = server[0] or "" if server else ""
        checked, admitted = self._checked, self._admitted
        for name, value in scope["headers"]:
            if name in checked and (here, value) not in admitted:
                self._look(here, name, value, scope)

    def _look(self, here: str, header: bytes, value: bytes, scope: Scope) -> None:
        """Decide about a host that is not kept, on a connection to the address ``here``."""
        is_local = not self._is_open and is_loopback(here)
        if is_local or self._is_set:
            if self._trust_proxy and not self._is_set and _is_forwarded(scope):
                return
            host = value.decode("latin-1")
            if header == _FORWARDED_HOST:
                host = first(host)
            if not host:
                return
            found = split_host(host)
            if found is None:
                raise NotOurHost(NOT_A_HOST, 400)
            if not self._is_ours(*found, here):
                raise NotOurHost(self._words(host), 421)
        if len(self._admitted) >= _MOST_KEPT:
            self._admitted.clear()
        self._admitted.add((here, value))

    def _is_ours(self, name: str, port: str, here: str) -> bool:
        if name == self._bound or (is_loopback(name) and is_loopback(here)):
            return True
        address = literal_address(name)
        if address is not None and address == literal_address(here):
            return True
        ports = {port, ""} if port else {"", *_DEFAULT_PORTS}
        if any((name, each) in self._names for each in ports):
            return True
        return any(name.endswith(end) and each in ports for end, each in self._suffixes)

    def _words(self, host: str) -> str:
        if self._is_set:
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
    """Return whether ``allowed_hosts`` can have this: a host, ``*.`` and a host, or ``*``.

    A host may have a port, and an IPv6 address is in brackets.
    """
    if not isinstance(pattern, str) or pattern == ANY:
        return pattern == ANY
    found = split_host(pattern.removeprefix(_BELOW))
    if found is None:
        return False
    return _NAME.fullmatch(found[0]) is not None or pattern.startswith("[")


def _is_forwarded(scope: Scope) -> bool:
    return any(name.startswith(b"x-forwarded-") for name, _ in scope["headers"])
