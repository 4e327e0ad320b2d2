"""Limits on the resources that clients can occupy: requests, bytes, sockets, and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from parley.model.errors import OverloadedError, TooManyRequestsError
from parley.model.service import CallContext
from parley.security.networks import network_of
from parley.server.settings import Settings

if TYPE_CHECKING:
    from parley.server.http1.connection import HttpConnection
    from parley.server.websocket.connection import SocketConnection

# -- bytes ------------------------------------------------------------------------------------


class ByteBudget:
    """The bytes held for each address: at most ``limit`` of them. ``what`` names them in errors.

    An IPv6 address counts as its network (/64), which is what one client has. Clients without an
    address (unix sockets) have no separate budget.
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
    """The bytes of requests that are incomplete or wait for an earlier answer.

    They are limited in total, and for each address: to its share, or to one request of the maximum
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


class UnsentBytes:
    """The bytes of unread answers: at most ``max_unsent_bytes`` together.

    When they exceed that, the answers without progress for longest are aborted. An answer without
    progress for ``timeout`` seconds is aborted too, after at most twice that time. Answers that
    cannot be aborted (gRPC) are rejected instead, also when one address has used up its share.
    """

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_unsent_bytes
        # The unsent bytes of each answer and the time of its last progress, the oldest first.
        self._unread: dict[HttpConnection | SocketConnection, tuple[int, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._address_limit = int(self._limit * settings.address_share)
        self.by_address = ByteBudget("unread answers", self._address_limit)
        self.total = 0

    def add(self, answer: HttpConnection | SocketConnection, timeout: float) -> None:
        """Watch an unread answer until ``discard``. All answers have the same ``timeout``."""
        self.discard(answer)
        size = answer.unsent()
        loop = asyncio.get_running_loop()
        self._unread[answer] = size, loop.time()
        self.total += size
        if self.total > self._limit:
            self._make_room(0)
        if self._timer is None and self._unread:
            self._timer = loop.call_later(timeout, self._abort_stalled, timeout)

    def discard(self, answer: HttpConnection | SocketConnection) -> None:
        """Stop watching an answer, if it is watched."""
        if answer in self._unread:
            self.total -= self._unread.pop(answer)[0]
            if not self._unread and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    @property
    def is_small(self) -> bool:
        """Return whether there is room for an answer to any address."""
        return self.total < self._address_limit

    def check(self, address: str) -> None:
        """Raise ``OverloadedError`` when there is no room for any answer to an address."""
        if self.total >= self._limit:
            self._make_room(1)
        if self.total >= self._limit:
            raise self._overloaded()
        self.by_address.check(address, 1)

    def reserve(self, address: str, size: int) -> None:
        """Reserve room for an answer that cannot be aborted, until ``release``.

        An answer of any size passes when it is the only one. Raises ``OverloadedError``.
        """
        if self.total + size > self._limit:
            self._make_room(size)
        if self.total and self.total + size > self._limit:
            raise self._overloaded()
        self.by_address.check(address, size)
        self.by_address.add(address, size)
        self.total += size

    def release(self, address: str, size: int) -> None:
        """Release reserved room."""
        self.total -= size
        self.by_address.subtract(address, size)

    def _overloaded(self) -> OverloadedError:
        return OverloadedError(
            f"{self.total} bytes of unread answers are here, of which this server holds "
            f"{self._limit}",
            retry_after=1,
        )

    def _make_room(self, size: int) -> None:
        """Abort unread answers until there is room for ``size`` bytes.

        With ``size`` 0, one answer stays: a single answer may have any size.
        """
        self._measure()
        while self.total + size > self._limit and len(self._unread) > (not size):
            self._abort(next(iter(self._unread)))

    def _measure(self) -> None:
        """Measure all unread answers, and record which have made progress."""
        now = asyncio.get_running_loop().time()
        for answer, (before, _) in list(self._unread.items()):
            size = answer.unsent()
            if size < before:
                del self._unread[answer]
                self._unread[answer] = size, now
                self.total -= before - size

    def _abort_stalled(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        self._measure()
        now = loop.time()
        for answer, (_, since) in list(self._unread.items()):
            if now - since < timeout:
                break
            self._abort(answer)
        self._timer = None
        if self._unread:
            self._timer = loop.call_later(timeout, self._abort_stalled, timeout)

    def _abort(self, answer: HttpConnection | SocketConnection) -> None:
        self.discard(answer)
        answer.abort()


# -- requests ---------------------------------------------------------------------------------


class ConcurrencyLimiter:
    """A number of slots, and a share of them for each known caller.

    ``what`` names the slots in errors. ``share`` is the part of ``limit`` that one caller may use;
    callers are distinguished by tenant and owner. Anonymous callers have no share, because their
    number is unknown.
    """

    def __init__(self, what: str, limit: int, share: float) -> None:
        self._what = what
        self._limit = limit
        self._caller_limit = max(1, int(limit * share))
        self._taken = 0
        self._by_caller: dict[tuple[str, str], int] = {}

    def slot(self, context: CallContext) -> AbstractContextManager[None]:
        """Have a slot while the context lasts. Raises ``OverloadedError`` if none is free."""
        return self.slot_of((context.tenant, context.caller.owner))

    @contextmanager
    def slot_of(self, caller: tuple[str, str]) -> Iterator[None]:
        """Have a slot for a caller, given as tenant and owner, while the context lasts."""
        self.acquire(caller)
        try:
            yield
        finally:
            self.release(caller)

    def acquire(self, caller: tuple[str, str]) -> None:
        """Acquire a slot for a caller, until ``release``. Raises ``OverloadedError``."""
        if self._taken >= self._limit:
            raise OverloadedError(
                f"{self._taken} {self._what}, which is all that this server serves at once",
                retry_after=1,
            )
        if caller[1]:
            taken = self._by_caller.get(caller, 0)
            if taken >= self._caller_limit:
                raise OverloadedError(
                    f"{taken} {self._what} for this caller, which is as many as one caller may "
                    "have here",
                    retry_after=1,
                )
            self._by_caller[caller] = taken + 1
        self._taken += 1

    def release(self, caller: tuple[str, str]) -> None:
        """Release a slot of a caller."""
        self._taken -= 1
        if caller[1]:
            self._by_caller[caller] -= 1
            if not self._by_caller[caller]:
                del self._by_caller[caller]


# -- sockets ----------------------------------------------------------------------------------

_RETRY = 5  # seconds


class SocketLimits:
    """The sockets of a process: limited in total, for each address and for each known caller.

    An IPv6 address counts as its network (/64). The caller of a socket is known after its
    identification, so the binding acquires that slot.
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

        Raises ``OverloadedError`` if none is free, ``TooManyRequestsError`` if the address has used
        up its own.
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
        """Acquire a slot for a socket of a caller, given as tenant and owner.

        A caller without an owner is not known, and only uses the slots of its address. Raises
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


# -- timeouts ---------------------------------------------------------------------------------

T = TypeVar("T")

# The timer may be late by this part of the time: sockets that are due together share a call.
_LATE = 0.05
# The number of timeouts after which the event loop does other work.
_TIMEOUTS_PER_PASS = 200


class SharedTimeouts(Generic[T]):
    """Calls ``expired`` for each of many objects, ``seconds`` after it was set, unless it is
    cleared.

    Thousands of idle sockets wait for their next ping: a timer of the event loop for each would
    cost more memory, and more time, than the pings.
    """

    __slots__ = ("_due", "_expired", "_seconds", "_timer")

    def __init__(self, seconds: float, expired: Callable[[T], None]) -> None:
        self._seconds = seconds
        self._expired = expired
        self._due: dict[T, float] = {}  # in the order of their times
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, waiting: T) -> bool:
        return waiting in self._due

    def set(self, waiting: T) -> None:
        """Begin to wait, or begin again."""
        loop = asyncio.get_running_loop()
        self._due.pop(waiting, None)
        due = self._due[waiting] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(due + self._seconds * _LATE, self._fire)

    def clear(self, waiting: T) -> None:
        """Wait no longer."""
        if self._due.pop(waiting, None) is not None and not self._due and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        due: list[T] = []
        for waiting, when in self._due.items():
            if when > now or len(due) == _TIMEOUTS_PER_PASS:
                break
            due.append(waiting)
        for waiting in due:
            if self._due.get(waiting, now + 1) <= now:  # an expired wait may clear others
                del self._due[waiting]
                self._expired(waiting)
        if not self._due:
            return
        first = next(iter(self._due.values()))
        if first <= now:  # the remaining ones after other work of the loop
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(0, self._fire)
        elif self._timer is None:
            self._timer = loop.call_at(first + self._seconds * _LATE, self._fire)
