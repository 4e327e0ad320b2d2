"""How many WebSockets are open: in all, for each address and for each caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from parley.model.errors import OverloadedError, TooManyRequestsError
from parley.security.networks import network_of
from parley.server.settings import Settings

_RETRY = 5  # seconds


class SocketLimits:
    """The sockets of a process: bounded in all, for each address and for each known caller.

    An IPv6 address counts with all of its network (/64). The caller of a socket is known once it
    is identified, so the binding takes that slot.
    """

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_sockets
        self._address_limit = settings.max_sockets_per_address
        self._caller_limit = settings.max_sockets_per_caller
        self._by_address: dict[str, int] = {}
        self._by_caller: dict[tuple[str, str], int] = {}
        self.open = 0

    def acquire(self, address: str) -> None:
        """Acquire a slot for a socket from an address, until ``release``.

        Raises ``OverloadedError`` if none is free, ``TooManyRequestsError`` if that address has all
        of its own.
        """
        network = network_of(address)
        if self.open >= self._limit:
            raise OverloadedError(
                f"{self.open} sockets are open, which is all that this server has at once",
                retry_after=_RETRY,
            )
        count = self._by_address.get(network, 0)
        if network and count >= self._address_limit:
            raise TooManyRequestsError(
                f"{count} sockets are open from your address, which is as many as one may have "
                "here; use one socket for many messages",
                retry_after=_RETRY,
            )
        self.open += 1
        _count(self._by_address, network, 1)

    def release(self, address: str) -> None:
        """Release the slot of a socket."""
        self.open -= 1
        _count(self._by_address, network_of(address), -1)

    @contextmanager
    def slot_of(self, caller: tuple[str, str]) -> Iterator[None]:
        """Have a slot for a socket of a caller, given as tenant and owner.

        A caller without an owner is not known, and has the slots of its address alone. Raises
        ``TooManyRequestsError`` if none is free.
        """
        count = self._by_caller.get(caller, 0)
        if caller[1] and count >= self._caller_limit:
            raise TooManyRequestsError(
                f"{count} sockets of this caller are open, which is as many as one may have here; "
                "use one socket for many messages",
                retry_after=_RETRY,
            )
        if caller[1]:
            _count(self._by_caller, caller, 1)
        try:
            yield
        finally:
            if caller[1]:
                _count(self._by_caller, caller, -1)


def _count(counts: dict, key: object, change: int) -> None:  # type: ignore[type-arg]
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]
