"""How many bytes of requests the server holds that it cannot answer yet."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv6Address

from parley.model.errors import OverloadedError
from parley.server.settings import Settings

_RETRY_AFTER = 1


class Held:
    """Bytes of requests that are not whole, or wait for their turn: so many in all.

    One address may have its share of them, but always as many as the largest request has. An
    address of IPv6 counts with all of its network (/64), which is what one client has.
    Those that have none (unix sockets) share only the whole.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_body_bytes_held
        self._each = max(settings.max_body_bytes, int(self._most * settings.address_share))
        self.total = 0
        self._of: dict[str, int] = {}

    def take(self, address: str, size: int) -> None:
        """Count ``size`` bytes more for an address, until ``give_back``.

        Raises ``OverloadedError`` when there is no room for them; nothing is counted then.
        """
        if self.total + size > self._most:
            raise OverloadedError(
                f"{self.total} bytes of unfinished requests are here, and this server holds "
                f"{self._most}",
                retry_after=_RETRY_AFTER,
            )
        if address:
            network = _network(address)
            his = self._of.get(network, 0)
            if his + size > self._each:
                raise OverloadedError(
                    f"{his} bytes of unfinished requests are here from your address, of which "
                    f"this server holds {self._each}",
                    retry_after=_RETRY_AFTER,
                )
            self._of[network] = his + size
        self.total += size

    def give_back(self, address: str, size: int) -> None:
        """Count ``size`` bytes no more."""
        self.total -= size
        if address and size:
            network = _network(address)
            self._of[network] -= size
            if not self._of[network]:
                del self._of[network]


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
