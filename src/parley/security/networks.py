"""IP addresses: loopback, membership in networks, and the address of a client."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Any
from urllib.parse import urlsplit

CONNECTION = "parley.connection"
"""The extension of a scope with the address of its connection, if proxy headers are trusted."""

KNOWN_PROXIES = "FORWARDED_ALLOW_IPS"
"""The environment variable with the addresses of known proxies, as for uvicorn."""

_FORWARDED_FOR = b"x-forwarded-for"


def client_address(scope: Mapping[str, Any], *, trust_proxy: bool = False) -> str:
    """Return the IP address of the sender of a request; empty if there is none (unix sockets).

    With ``trust_proxy`` it is the last address in ``X-Forwarded-For``, which the nearest proxy
    added; callers can forge the addresses before it. If further proxies are known
    (``FORWARDED_ALLOW_IPS``), it is the last address that is not a known proxy. Without the header,
    or without an address in it, it is the address of the connection.
    """
    client = scope.get("client")
    address: str = client[0] or "" if client else ""
    if not trust_proxy:
        return address
    connected = connection_address(scope)
    named = b",".join([value for name, value in scope["headers"] if name == _FORWARDED_FOR])
    if not named.strip():
        return connected
    listed = [_bare(each.strip()) for each in named.decode("latin-1").split(",")]
    knows_proxies = address != connected and "*" not in os.environ.get(KNOWN_PROXIES, "")
    if knows_proxies and address in listed:
        return address
    return listed[-1] if literal_address(listed[-1]) is not None else connected


def connection_address(scope: Mapping[str, Any]) -> str:
    """Return the IP address of the connection itself, independent of proxy headers.

    A server other than Parley's may have replaced it with a forwarded address.
    """
    own = (scope.get("extensions") or {}).get(CONNECTION)
    client = own["client"] if own else scope.get("client")
    return client[0] or "" if client else ""


def _bare(address: str) -> str:
    """Return an address without brackets and port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def network_of(address: str) -> str:
    """Return the unit that counts as one client: an IPv4 address, or the /64 of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        ip = IPv6Address(address)
    except AddressValueError:
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return f"{IPv6Address(int(ip) >> 64 << 64)}/64"


Network = IPv4Network | IPv6Network


def is_loopback(host: str) -> bool:
    """Return whether a host, without port and brackets, is ``localhost`` or a loopback address."""
    address = literal_address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_plain_public(url: str) -> bool:
    """Return whether a URL is plain http to another machine, where secrets must not be sent."""
    try:
        parts = urlsplit(url)
        return parts.scheme.lower() == "http" and not is_loopback(parts.hostname or "")
    except ValueError:
        return False


def literal_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address if a host is one, ``None`` for a name.

    An IPv4 address that is mapped into IPv6, as dual-stack sockets report it, becomes IPv4.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def networks(given: Iterable[str], *, what: str) -> tuple[Network, ...]:
    """Return networks such as ``10.0.0.0/8``; a single address is a network of one.

    Raises ``ValueError``, beginning with ``what``, for anything else.
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
    """Return whether an address is in a network; a malformed address is in none."""
    found = literal_address(address.partition("%")[0])
    return found is not None and any(found in each for each in among)
