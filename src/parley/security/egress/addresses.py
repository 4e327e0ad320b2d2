"""Kinds of addresses: loopback, private, and what else is not the public internet."""

from __future__ import annotations

import ipaddress
from typing import TypeVar

from parley.model.errors import an

E = TypeVar("E", bound=BaseException)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# The registries of special-purpose addresses (RFC 6890 and what followed), spelled out because
# ``ipaddress`` judges some of them differently from one version of Python to the next.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("loopback", ("127.0.0.0/8", "::1/128")),
    ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")),
    ("shared", ("100.64.0.0/10",)),
    ("translated", ("64:ff9b:1::/48",)),
    ("link-local", ("169.254.0.0/16", "fe80::/10")),
    ("unspecified", ("0.0.0.0/8", "::/128")),
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    (
        "reserved",
        (
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
            "203.0.113.0/24", "240.0.0.0/4",
            "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16",
        ),
    ),
)  # fmt: skip
_NETWORKS = [
    (ipaddress.ip_network(network), kind) for kind, networks in _KINDS for network in networks
]
_GLOBAL = ipaddress.ip_network("2000::/3")

PRIVATE_KINDS = frozenset({"loopback", "private", "shared", "translated"})
"""The kinds that ``private`` allows; not link-local, where clouds serve credentials."""

DENIED = "denied"
"""The kind of what a deny-list names."""

UNLISTED = "disallowed"
"""The kind of what an allow-list does not name, where nothing else is allowed."""

PORT = "port"
"""The kind of an address whose port belongs to another protocol than HTTP."""

# IPv6 networks whose addresses contain IPv4 ones, and the offset of those.
_IPV4_COMPATIBLE = ipaddress.ip_network("::/96")
_WRAPPING = [
    (ipaddress.ip_network("::ffff:0:0/96"), 12),
    (ipaddress.ip_network("64:ff9b::/96"), 12),
    (ipaddress.ip_network("2002::/16"), 2),
]
_TEREDO = ipaddress.ip_network("2001::/32")
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")


class ForbiddenAddress(OSError):
    """The policy forbids an address.

    ``kind`` is that of the address, and ``where`` says it in words. ``option`` is the setting that
    may allow it, empty if none does or none is known, and ``place`` what it has to name.
    """

    def __init__(self, host: str, kind: str, *, port: int = 0, option: str = "") -> None:
        self.kind = kind
        self.option = option
        shown = self.place = host[:100]
        if kind == PORT:
            self.place = f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"
            self.where = f"on port {port}, which other protocols than HTTP use"
            super().__init__(f"{shown} is {self.where}")
        else:
            self.where = f"at {an(kind)} address"
            super().__init__(f"{shown} is {an(kind)} address")


def find_forbidden(error: BaseException) -> ForbiddenAddress | None:
    """Return the ``ForbiddenAddress`` among the causes of an error, if any."""
    return find_cause(error, ForbiddenAddress)


def find_cause(error: BaseException, kind: type[E]) -> E | None:
    """Return the error of a kind among the causes of an error, if any."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, kind):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def address_kind(address: Address) -> str:
    """Return the kind of an address, empty for one of the public internet."""
    for network, kind in _NETWORKS:
        if address.version == network.version and address in network:
            return kind
    if address.version == 6 and address not in _GLOBAL:
        return "reserved"
    return ""


def effective_addresses(address: Address) -> list[Address]:
    """Return the addresses to judge for one: itself, or the IPv4 ones that it contains."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    packed = address.packed
    for network, place in _WRAPPING:
        if address in network:
            return [ipaddress.IPv4Address(packed[place : place + 4])]
    if address in _TEREDO:  # the server's address, and the client's with all bits inverted
        client = bytes(byte ^ 0xFF for byte in packed[12:])
        return [ipaddress.IPv4Address(packed[4:8]), ipaddress.IPv4Address(client)]
    is_compatible = address in _IPV4_COMPATIBLE and int(address) > 0xFFFF
    if is_compatible or packed[8:12] in _ISATAP:
        return [address, ipaddress.IPv4Address(packed[12:])]
    return [address]
