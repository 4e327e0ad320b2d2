"""What the HTTP connections of a server share: its app, their limits, and who is connected."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from starlette.types import ASGIApp

from parley.server.http1.direct import AnswersDirectly
from parley.server.http1.proxies import KnownProxies
from parley.server.limits.byte_budget import ByteReservation
from parley.server.limits.slow_readers import UnsentBytes
from parley.server.websocket.upgrade import Upgrades

LEAST_SHARE = 100
"""How many connections one address may have, whatever its share is."""


class Connected(Protocol):
    """A connection, as its server sees it."""

    @property
    def network(self) -> str:
        """The network that counts as its client; empty if there is none."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request."""
        ...

    def shutdown(self) -> None:
        """Close the connection after the answer under way."""
        ...

    def abort(self) -> None:
        """Abort the connection."""
        ...


M = TypeVar("M")


class Members(set[M]):
    """A set that tells when its last member has gone."""

    def __init__(self, on_empty: Callable[[], None]) -> None:
        super().__init__()
        self._on_empty = on_empty

    def discard(self, member: object) -> None:
        """Remove a member, if it is one."""
        super().discard(member)
        if not self:
            self._on_empty()


class HttpConnections(Members[Connected]):
    """The connections of a server: so many at ``most``, of which each address has a share.

    An IPv6 address is its network (/64). An address with its whole share gets a new connection for
    its longest idle one. When all are taken, the address that has most loses its longest idle one.
    ``is_exempt`` knows the addresses whose connections are those of many clients.
    """

    def __init__(
        self,
        on_empty: Callable[[], None],
        most: int,
        share: float,
        is_exempt: Callable[[str], bool],
    ) -> None:
        super().__init__(on_empty)
        self._most = most
        self._share = min(most, max(LEAST_SHARE, int(most * share)))
        self._is_exempt = is_exempt
        self._counts: Counter[str] = Counter()
        # By network, the longest idle one first; some of them have a request again.
        self._idle: defaultdict[str, dict[Connected, None]] = defaultdict(dict)

    def add(self, member: Connected) -> None:
        """Count a connection."""
        super().add(member)
        self._counts[member.network] += 1

    def discard(self, member: Any) -> None:
        """Count a connection no longer, if it was counted."""
        if member in self:
            network = member.network
            self._idle[network].pop(member, None)
            self._counts[network] -= 1
            if not self._counts[network]:
                del self._counts[network], self._idle[network]
        super().discard(member)

    def rest(self, member: Connected) -> None:
        """Note that a connection begins to wait for a request."""
        idle = self._idle[member.network]
        idle.pop(member, None)
        idle[member] = None

    def make_room(self, address: str, network: str) -> bool:
        """Return whether a further connection has room. An idle one may be closed for it."""
        if self._counts[network] >= self._share and not self._is_exempt(address):
            return self._close_idle(network)
        return len(self) < self._most or self._close_idle(
            max(self._counts, key=self._counts.__getitem__)
        )

    def _close_idle(self, network: str) -> bool:
        """Close the longest idle connection of a network; return whether there is one."""
        idle = self._idle[network]
        while idle:
            first = next(iter(idle))
            del idle[first]
            if first.is_idle:
                first.shutdown()
                return True
        return False


class HttpServing:
    """The app of a server, the limits of each connection, and the budgets that all share.

    ``max_connections`` are accepted, of which one address has ``address_share``.
    ``head_timeout`` is in seconds from the first byte of a request to the end of its headers.
    ``body_timeout`` is for the body, extended with what arrives, and for each pause in it.
    ``idle_timeout`` is for the time between requests, and for a client that does not read.
    ``request_bytes`` bounds unanswered input, ``unsent_bytes`` unread output. ``proxies`` are those
    whose headers say who the sender is; ``None`` believes nobody. ``upgrades`` makes WebSockets of
    the requests that ask for one; without it nothing does. ``state`` is what the app's lifespan
    gives to its requests. ``direct`` knows the requests that need no ASGI.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_connections: int,
        address_share: float = 1.0,
        head_timeout: float,
        body_timeout: float,
        idle_timeout: float,
        request_bytes: ByteReservation,
        unsent_bytes: UnsentBytes,
        proxies: KnownProxies | None = None,
        upgrades: Upgrades | None = None,
        logs_access: bool = False,
        direct: AnswersDirectly | None = None,
    ) -> None:
        self.app = app
        self.head_timeout = head_timeout
        self.body_timeout = body_timeout
        self.idle_timeout = idle_timeout
        self.request_bytes = request_bytes
        self.unsent_bytes = unsent_bytes
        self.proxies = proxies
        self.upgrades = upgrades
        self.logs_access = logs_access
        self.direct = direct
        self.state: dict[str, Any] = {}
        self._ended = asyncio.Event()
        self.connections = HttpConnections(
            self._check_ended,
            max_connections,
            address_share,
            lambda address: not address or (proxies is not None and address in proxies),
        )
        self.tasks: Members[asyncio.Task[None]] = Members(self._check_ended)

    def _check_ended(self) -> None:
        if not (self.connections or self.tasks):
            self._ended.set()

    async def wait_ended(self) -> None:
        """Wait until there is no connection and no task."""
        while self.connections or self.tasks:
            self._ended.clear()
            await self._ended.wait()
