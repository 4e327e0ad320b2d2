"""Networks of IP addresses: who is among them."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network

from parley.security.loopback import literal_address

Network = IPv4Network | IPv6Network


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
