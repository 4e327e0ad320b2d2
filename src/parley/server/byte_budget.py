"""How many bytes the server holds for its clients, and how many of them for one address."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv6Address

from parley.model.errors import OverloadedError
from parley.server.settings import Settings


class ByteBudget:
    """Bytes that are held for each address: ``each`` at most, of what ``what`` names.

    An address of IPv6 counts with all of its network (/64), which is what one client has. Those
    that have none (unix sockets) have no share of their own.
    """

    def __init__(self, what: str, each: int) -> None:
        self._what = what
        self._each = each
        self._of: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether anything is held for anybody."""
        return bool(self._of)

    def check(self, address: str, size: int) -> None:
        """Raise ``OverloadedError`` when so many bytes more would be too many for an address.

        Those of one alone never are.
        """
        his = self._of.get(_network(address), 0)
        if his and his + size > self._each:
            raise OverloadedError(
                f"{his} bytes of {self._what} are here for your address, of which this server "
                f"holds {self._each}",
                retry_after=1,
            )

    def add(self, address: str, size: int) -> None:
        """Count bytes more."""
        if address and size:
            network = _network(address)
            self._of[network] = self._of.get(network, 0) + size

    def take_off(self, address: str, size: int) -> None:
        """Count bytes no more."""
        if address and size:
            network = _network(address)
            self._of[network] -= size
            if not self._of[network]:
                del self._of[network]


class ByteReservation:
    """Bytes of requests that are not whole, or wait for their turn: so many in all.

    One address may have its share of them, but always as many as the largest request has.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_body_bytes_held
        each = max(settings.max_body_bytes, int(self._most * settings.address_share))
        self.shares = ByteBudget("unfinished requests", each)
        self.total = 0

    def take(self, address: str, size: int) -> None:
        """Count ``size`` bytes more for an address, until ``give_back``.

        Raises ``OverloadedError`` when there is no room for them; nothing is counted then.
        """
        if self.total + size > self._most:
            raise OverloadedError(
                f"{self.total} bytes of unfinished requests are here, of which this server holds "
                f"{self._most}",
                retry_after=1,
            )
        self.shares.check(address, size)
        self.shares.add(address, size)
        self.total += size

    def give_back(self, address: str, size: int) -> None:
        """Count ``size`` bytes no more."""
        self.total -= size
        self.shares.take_off(address, size)


def _network(address: str) -> str:
    if ":" not in address:
        return address
    try:
        ip = IPv6Address(address)
    except AddressValueError:
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return ip.exploded[:19]
