"""Budgets for the bytes that clients make the server hold, in all and for each address."""

from __future__ import annotations

from parley.model.errors import OverloadedError
from parley.security.networks import network_of
from parley.server.settings import Settings


class ByteBudget:
    """The bytes held for each address: at most ``limit`` of them. ``what`` names them in errors.

    An IPv6 address counts with all of its network (/64), which is what one client has. Clients
    without an address (unix sockets) have no budget of their own.
    """

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._held: dict[str, int] = {}  # by network

    def check(self, address: str, size: int) -> None:
        """Raise ``OverloadedError`` when ``size`` bytes more exceed the budget of an address.

        An address that holds nothing yet always passes.
        """
        held = self._held.get(network_of(address), 0)
        if held and held + size > self._limit:
            raise OverloadedError(
                f"{held} bytes of {self._what} are here for your address, of which this server "
                f"holds {self._limit}",
                retry_after=1,
            )

    def add(self, address: str, size: int) -> None:
        """Add bytes to an address."""
        if address and size:
            network = network_of(address)
            self._held[network] = self._held.get(network, 0) + size

    def subtract(self, address: str, size: int) -> None:
        """Subtract bytes from an address."""
        if address and size:
            network = network_of(address)
            self._held[network] -= size
            if not self._held[network]:
                del self._held[network]


class ByteReservation:
    """The bytes of requests that are incomplete or wait for the answer before theirs.

    They are bounded in all, and for each address: to its share, or to one request of the largest
    size where that is more.
    """

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_body_bytes_held
        limit = max(settings.max_body_bytes, int(self._limit * settings.address_share))
        self.by_address = ByteBudget("unfinished requests", limit)
        self.total = 0

    def reserve(self, address: str, size: int) -> None:
        """Reserve ``size`` bytes for an address, until ``release``.

        Raises ``OverloadedError`` when they exceed a limit; nothing is reserved then.
        """
        if self.total + size > self._limit:
            raise OverloadedError(
                f"{self.total} bytes of unfinished requests are here, of which this server holds "
                f"{self._limit}",
                retry_after=1,
            )
        self.by_address.check(address, size)
        self.by_address.add(address, size)
        self.total += size

    def release(self, address: str, size: int) -> None:
        """Release ``size`` reserved bytes."""
        self.total -= size
        self.by_address.subtract(address, size)
