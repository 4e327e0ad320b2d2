"""Loopback: hosts that only this machine itself reaches."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether a host, without port and brackets, is ``localhost`` or a loopback address."""
    address = literal_address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_plain_public(url: str) -> bool:
    """Return whether a URL is plain http to another machine: nothing secret may go there."""
    try:
        parts = urlsplit(url)
        return parts.scheme.lower() == "http" and not is_loopback(parts.hostname or "")
    except ValueError:
        return False


def literal_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is, ``None`` for a name.

    An IPv4 address that is mapped into IPv6, as dual-stack sockets report it, is that one.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
