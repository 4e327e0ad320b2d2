"""The addresses that a request dials, told to whoever makes it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from contextvars import ContextVar

on_dial: ContextVar[Callable[[str], None] | None] = ContextVar("parley_on_dial", default=None)
"""Called with each address before a connection to it is made. It may raise ``OSError``."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def dialled(address: str) -> None:
    """Tell whoever makes the request of this context that an address is dialled."""
    told = on_dial.get()
    if told is not None:
        told(address)


def network_of(address: str) -> str:
    """Return what one machine or site has: an IPv4 address, or the first 64 bits of an IPv6 one.

    The IPv4 address in an IPv6 one (mapped, NAT64, 6to4) stands for it.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    inner = parsed.ipv4_mapped or parsed.sixtofour
    if inner is None and parsed in _NAT64:
        inner = ipaddress.IPv4Address(parsed.packed[12:])
    if inner is not None:
        return str(inner)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
