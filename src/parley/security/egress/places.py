"""Entries of allow-lists and deny-lists: hosts, domains, networks, each on one port or on all."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

import msgspec

from parley.security.egress.addresses import Address
from parley.security.egress.hosts import is_number, normalize_host

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ANY = "*"
_IN_BRACKETS = re.compile(r"\[([^\[\]]+)\](?::(\d+))?")
_WITH_PORT = re.compile(r"([^:\[\]]*):(\d+)")
_NAME = re.compile(r"[^\s:/\[\]@?#\\]+")


class Place(msgspec.Struct, frozen=True):
    """Where requests may or must not go.

    ``name`` is a host in lower case, ``*.domain`` for all hosts below a domain, or ``*`` for all
    hosts; without one, ``network`` has addresses. ``port`` 0 stands for all ports.
    """

    name: str = ""
    network: Network | None = None
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place that an operator wrote. Raises ``ValueError`` with the forms."""
        host, port = text, "0"
        if match := _IN_BRACKETS.fullmatch(text):
            host, port = match[1], match[2] or "0"
        elif match := _WITH_PORT.fullmatch(text):
            host, port = match[1] or ANY, match[2]
        try:
            if len(port) > 5 or int(port) > 65535 or (port != "0" and not int(port)):
                raise ValueError("a port from 1 to 65535")
            if host == ANY:
                return cls(name=ANY, port=int(port))
            return cls._of(host, int(port))
        except ValueError as error:
            raise ValueError(
                f"{text!r} is no host, no address and no network: write hooks.example.com, "
                "*.example.com, 10.1.0.0/16 or [fd00::1], each with a port (:8443) or without"
            ) from error

    @classmethod
    def _of(cls, host: str, port: int) -> Place:
        try:
            return cls(network=ipaddress.ip_network(host), port=port)
        except ValueError:
            if "/" in host or ":" in host or is_number(host):
                raise
        prefix, rest = ("*.", host[2:]) if host.startswith("*.") else ("", host)
        if not _NAME.fullmatch(rest):
            raise ValueError("a host")
        return cls(name=prefix + normalize_host(rest), port=port)

    def has_name(self, host: str) -> bool:
        """Return whether a host is meant by its name, whatever the port."""
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        return bool(host) and self.name in (host, ANY)

    def has(self, host: str, addresses: Iterable[Address], port: int) -> bool:
        """Return whether a host or one of its addresses is meant, on this port."""
        if self.port not in (0, port):
            return False
        if self.name == ANY:
            return True
        return self.has_name(host) if self.network is None else any(map(self.covers, addresses))

    def covers(self, address: Address) -> bool:
        """Return whether an address is in the network, whatever the port."""
        network = self.network
        return network is not None and address.version == network.version and address in network


def places(given: Iterable[str]) -> tuple[Place, ...]:
    """Return the places of a list. Raises ``ValueError`` for one that is none, and for a string."""
    if isinstance(given, str):
        raise ValueError(f"give a list of hosts and networks, such as [{given!r}]")
    return tuple(Place.parse(each.strip()) for each in given)
