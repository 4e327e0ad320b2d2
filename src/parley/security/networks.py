"""Addresses and networks of IP: loopback, and membership."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

Network = IPv4Network | IPv6Network


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


def networks(given: Iterable[str], *, what: str) -> tuple[Network, ...]:
    """Return networks such as ``10.0.0.0/8``; an address is the network of itself.

    Raises ``ValueError`` for anything else, which begins with ``what``.
    """
    if isinstance(given, str):
        raise ValueError(f'{what} takes a list of networks, such as ["{given}"]')
    found = []
    for each in given:
        try:
            found.append(ip_network(each))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{what} takes networks such as 10.0.0.0/8 and addresses, not {each!r} ({error})"
            ) from None
    return tuple(found)


def is_among(address: str, among: Iterable[Network]) -> bool:
    """Return whether an address is in one of the networks; what is no address is in none."""
    found = literal_address(address.partition("%")[0])
    return found is not None and any(found in each for each in among)
