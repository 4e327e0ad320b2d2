"""The address that a request comes from, and the network that counts as one client."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import AddressValueError, IPv6Address
from typing import Any

from parley.security.loopback import literal_address

_FORWARDED_FOR = b"x-forwarded-for"


def client_address(scope: Mapping[str, Any], *, trust_proxy: bool = False) -> str:
    """Return the IP address of the sender of a request; empty if it has none (unix sockets).

    With ``trust_proxy`` it is the last one of ``X-Forwarded-For``, which the proxy itself added:
    callers can write what they like before it.
    """
    client = scope.get("client")
    address: str = client[0] or "" if client else ""
    if not trust_proxy:
        return address
    named = b",".join([value for name, value in scope["headers"] if name == _FORWARDED_FOR])
    listed = [_bare(each.strip()) for each in named.decode("latin-1").split(",")]
    if address in listed:
        return address  # the ASGI server took it from there, past all proxies that it knows
    return listed[-1] if literal_address(listed[-1]) is not None else address


def _bare(address: str) -> str:
    """Return an address without brackets and port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def network_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the network (/64) of an IPv6 one."""
    if ":" not in address:
        return address
    try:
        ip = IPv6Address(address)
    except AddressValueError:
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return f"{IPv6Address(int(ip) >> 64 << 64)}/64"
