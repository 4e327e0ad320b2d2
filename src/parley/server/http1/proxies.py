"""Who sent a request, behind proxies: ``X-Forwarded-For`` and ``-Proto``, of known proxies only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from parley.security.networks import KNOWN_PROXIES, literal_address

_DEFAULT = "127.0.0.1"
_SCHEMES = ("http", "https", "ws", "wss")
_MAX_CACHED = 1024

Client = tuple[str, int]


class KnownProxies:
    """The proxies whose headers count: addresses and networks with commas between, or ``*``."""

    def __init__(self, listed: str | None = None) -> None:
        if listed is None:
            listed = os.environ.get(KNOWN_PROXIES, _DEFAULT)
        names = [each.strip() for each in listed.split(",")]
        self._knows_all = listed.strip() == "*"
        self._names = frozenset(names)
        self._networks = tuple(each for each in map(_network, names) if each is not None)
        self._known: dict[str, bool] = {}

    def __contains__(self, host: str) -> bool:
        """Return whether a host is a known proxy."""
        if self._knows_all:
            return True
        found = self._known.get(host)
        if found is None:
            found = self._is_known(host)
            if len(self._known) < _MAX_CACHED and len(host) < 64:
                self._known[host] = found
        return found

    def _is_known(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return bool(host) and host in self._names
        return any(address in network for network in self._networks)

    def sender(
        self, headers: Iterable[tuple[bytes, bytes]], client: Client | None, scheme: str
    ) -> tuple[Client | None, str]:
        """Return the client and the scheme of a request that came from ``client``.

        The client is the last entry of ``X-Forwarded-For`` that is no known proxy, else the first
        one; ``client`` itself if that is no address.
        """
        if (client[0] if client else "") not in self:
            return client, scheme
        listed: list[bytes] = []
        for name, value in headers:
            if name == b"x-forwarded-for":
                listed.append(value)
            elif name == b"x-forwarded-proto":
                claimed = value.decode("latin-1").strip()
                scheme = claimed if claimed in _SCHEMES else scheme
        if listed:
            hosts = [
                _host_and_port(each) for each in b",".join(listed).decode("latin-1").split(",")
            ]
            first = hosts[0]
            if not self._knows_all:
                first = next((each for each in reversed(hosts) if each[0] not in self), first)
            if literal_address(first[0]) is not None:
                client = first
        return client, scheme


def _network(name: str) -> IPv4Network | IPv6Network | None:
    """Return a network, or that of one address."""
    try:
        return ip_network(name)
    except ValueError:
        return None


def _host_and_port(given: str) -> Client:
    """Return the parts of an address, which may have a port and brackets."""
    given = given.strip()
    if given.startswith("["):
        host, bracket, rest = given[1:].partition("]")
        if not bracket or (rest and rest[0] != ":"):
            return given, 0
        return host, _port(rest[1:])
    if given.count(":") == 1:
        host, _, port = given.partition(":")
        return (host, int(port)) if port.isdecimal() and port.isascii() else (given, 0)
    return given, 0


def _port(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() else 0
