"""The shared parts of a server's HTTP connections: its app, their limits, the open connections."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import ASGIApp, Scope

from parley.security.networks import KNOWN_PROXIES, literal_address
from parley.server.limits import ByteReservation, UnsentBytes
from parley.server.websocket.serving import Handed, SocketServing, asks_for_socket

if TYPE_CHECKING:
    from parley.server.app import App
    from parley.server.http1.connection import HttpConnection

LEAST_SHARE = 100
"""The minimum number of connections that one address may have, whatever its share is."""


M = TypeVar("M")


class Members(set[M]):
    """A set that signals when its last member is removed."""

    def __init__(self, on_empty: Callable[[], None]) -> None:
        super().__init__()
        self._on_empty = on_empty

    def discard(self, member: object) -> None:
        """Remove a member, if it is one."""
        super().discard(member)
        if not self:
            self._on_empty()


class HttpConnections(Members["HttpConnection"]):
    """The connections of a server: at most ``most``, and a share of them for each address.

    An IPv6 address is its network (/64). If an address has used up its share, a new connection
    replaces its longest idle one. If all connections are in use, the address with the most
    connections loses its longest idle one. ``is_exempt`` knows the addresses that stand for many
    clients.
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
        # By network, the longest idle one first; some may have a new request.
        self._idle: defaultdict[str, dict[HttpConnection, None]] = defaultdict(dict)

    def add(self, member: HttpConnection) -> None:
        """Count a connection."""
        super().add(member)
        self._counts[member.network] += 1

    def discard(self, member: Any) -> None:
        """Stop counting a connection, if it was counted."""
        if member in self:
            network = member.network
            self._idle[network].pop(member, None)
            self._counts[network] -= 1
            if not self._counts[network]:
                del self._counts[network], self._idle[network]
        super().discard(member)

    def rest(self, member: HttpConnection) -> None:
        """Note that a connection begins to wait for a request."""
        idle = self._idle[member.network]
        idle.pop(member, None)
        idle[member] = None

    def make_room(self, address: str, network: str) -> bool:
        """Return whether there is room for another connection. An idle one may be closed for it."""
        if self._counts[network] >= self._share and not self._is_exempt(address):
            return self._close_idle(network)
        return len(self) < self._most or self._close_idle(
            max(self._counts, key=self._counts.__getitem__)
        )

    def _close_idle(self, network: str) -> bool:
        """Close the longest idle connection of a network. Return whether there is one."""
        idle = self._idle[network]
        while idle:
            first = next(iter(idle))
            del idle[first]
            if first.is_idle:
                first.shutdown()
                return True
        return False


class Upgrades:
    """Upgrades requests to WebSockets, if ``takes`` accepts their scope."""

    def __init__(self, serving: SocketServing, takes: Callable[[Scope], bool]) -> None:
        self._serving = serving
        self._takes = takes

    def takes(self, scope: Scope) -> bool:
        """Return whether a request, given as its HTTP scope, is for a WebSocket."""
        headers = scope["headers"]
        is_asked = asks_for_socket(scope["method"], scope["http_version"], headers)
        return is_asked and self._takes(scope)

    def hand_over(self, transport: asyncio.Transport, handed: Handed) -> None:
        """Upgrade a connection to a WebSocket: shake hands, and call the app."""
        # Imported here, so that servers without sockets do not import websockets.
        from parley.server.websocket.connection import SocketConnection

        SocketConnection(self._serving, transport).begin(handed)


class HttpServing:
    """The app of a server, the limits of each connection, and the shared budgets.

    ``max_connections`` are accepted; one address has ``address_share`` of them. ``head_timeout`` is
    in seconds from the first byte of a request to the end of its headers. ``body_timeout`` is for
    the body, extended by received data, and for each pause in it. ``idle_timeout`` is for the time
    between requests, and for a client that does not read. ``request_bytes`` bounds unanswered
    input, ``unsent_bytes`` unread output. ``proxies`` are the proxies whose headers name the
    sender; ``None`` trusts no proxy. ``upgrades`` upgrades requests to WebSockets; without it there
    are none. ``state`` is the state that the app's lifespan shares with its requests. ``agents`` is
    the app whose requests to agents need no ASGI. While it ``is_ending``, each request is the last
    of its connection.
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
        agents: App | None = None,
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
        self.agents = agents
        self.state: dict[str, Any] = {}
        self.is_ending = False
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
        """Wait until there are no connections and no tasks."""
        while self.connections or self.tasks:
            self._ended.clear()
            await self._ended.wait()


# -- proxies ----------------------------------------------------------------------------------

_DEFAULT = "127.0.0.1"
_SCHEMES = ("http", "https", "ws", "wss")
_MAX_CACHED = 1024

Client = tuple[str, int]


class KnownProxies:
    """The proxies whose headers are trusted: addresses and networks separated by commas, or
    ``*``."""

    def __init__(self, listed: str | None = None) -> None:
        if listed is None:
            listed = os.environ.get(KNOWN_PROXIES, _DEFAULT)
        names = [each.strip() for each in listed.split(",")]
        self._knows_all = listed.strip() == "*"
        self._names = frozenset(names)
        self._networks = tuple(each for each in map(_network, names) if each is not None)
        self._known: dict[str, bool] = {}

    def __contains__(self, host: str) -> bool:
        """Return whether a host is a known proxy."""
        if self._knows_all:
            return True
        found = self._known.get(host)
        if found is None:
            found = self._is_known(host)
            if len(self._known) < _MAX_CACHED and len(host) < 64:
                self._known[host] = found
        return found

    def _is_known(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return bool(host) and host in self._names
        return any(address in network for network in self._networks)

    def sender(
        self, headers: Iterable[tuple[bytes, bytes]], client: Client | None, scheme: str
    ) -> tuple[Client | None, str]:
        """Return the client and the scheme of a request that came from ``client``.

        The client is the last entry of ``X-Forwarded-For`` that is not a known proxy, else the
        first one; ``client`` itself if that is not an address.
        """
        if (client[0] if client else "") not in self:
            return client, scheme
        listed: list[bytes] = []
        for name, value in headers:
            if name == b"x-forwarded-for":
                listed.append(value)
            elif name == b"x-forwarded-proto":
                claimed = value.decode("latin-1").strip()
                scheme = claimed if claimed in _SCHEMES else scheme
        if listed:
            hosts = [
                _host_and_port(each) for each in b",".join(listed).decode("latin-1").split(",")
            ]
            first = hosts[0]
            if not self._knows_all:
                first = next((each for each in reversed(hosts) if each[0] not in self), first)
            if literal_address(first[0]) is not None:
                client = first
        return client, scheme


def _network(name: str) -> IPv4Network | IPv6Network | None:
    """Return a network, or the network of one address."""
    try:
        return ip_network(name)
    except ValueError:
        return None


def _host_and_port(given: str) -> Client:
    """Return the parts of an address, which may have a port and brackets."""
    given = given.strip()
    if given.startswith("["):
        host, bracket, rest = given[1:].partition("]")
        if not bracket or (rest and rest[0] != ":"):
            return given, 0
        return host, _port(rest[1:])
    if given.count(":") == 1:
        host, _, port = given.partition(":")
        return (host, int(port)) if port.isdecimal() and port.isascii() else (given, 0)
    return given, 0


def _port(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() else 0
