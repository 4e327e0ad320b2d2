"""Egress policy (an SSRF guard): the addresses to connect to for URLs that callers give.

Such a URL may lead into the server's own network: to a database, a cloud's metadata, the server
itself. So the address is checked when it is dialled, after names were resolved, which defeats DNS
rebinding. A literal address or a local name in a URL can be rejected before that.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from parley.security.response_limits import bounded_connector

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

MAX_LOOKUPS = 64
"""The number of concurrent DNS look-ups of a connector."""

lookup_caller: ContextVar[str] = ContextVar("parley_looked_up_for", default="")
"""The caller on whose behalf a call is made: none may use more than half of the look-ups."""

E = TypeVar("E", bound=BaseException)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LOCAL_NAMES = ("localhost", "local", "localdomain", "internal", "intranet", "lan", "home.arpa")

# The registries of special-purpose addresses (RFC 6890 and what followed), spelled out because
# ``ipaddress`` judges some of them differently from one version of Python to the next.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("loopback", ("127.0.0.0/8", "::1/128")),
    ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")),
    ("shared", ("100.64.0.0/10",)),
    ("translated", ("64:ff9b:1::/48",)),
    ("link-local", ("169.254.0.0/16", "fe80::/10")),
    ("unspecified", ("0.0.0.0/8", "::/128")),
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    (
        "reserved",
        (
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
            "203.0.113.0/24", "240.0.0.0/4",
            "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16",
        ),
    ),
)  # fmt: skip
_NETWORKS = [
    (ipaddress.ip_network(network), kind) for kind, networks in _KINDS for network in networks
]
_GLOBAL = ipaddress.ip_network("2000::/3")

_PRIVATE_KINDS = frozenset({"loopback", "private", "shared", "translated"})
"""The kinds that ``private`` allows; not link-local, where clouds serve credentials."""

# IPv6 networks whose addresses contain IPv4 ones, and the offset of those.
_IPV4_COMPATIBLE = ipaddress.ip_network("::/96")
_WRAPPING = [
    (ipaddress.ip_network("::ffff:0:0/96"), 12),
    (ipaddress.ip_network("64:ff9b::/96"), 12),
    (ipaddress.ip_network("2002::/16"), 2),
]
_TEREDO = ipaddress.ip_network("2001::/32")
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")


class ForbiddenAddress(OSError):
    """The policy forbids an address. The message names its kind."""

    def __init__(self, host: str, kind: str) -> None:
        self.kind = kind
        super().__init__(f"{host[:100]} is a {kind} address")


class Egress(msgspec.Struct, frozen=True):
    """The allowed addresses: those of the public internet, and what the policy adds.

    ``private`` allows private networks and this machine. ``networks`` are allowed entirely, and so
    are ``hosts``, by their names in lower case.
    """

    private: bool = False
    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def allowing(cls, allowed: bool | Iterable[str]) -> Egress:
        """Return the policy for a setting: all private networks, or hosts, addresses, networks.

        Raises ``ValueError`` for anything else.
        """
        if isinstance(allowed, bool):
            return cls(private=allowed)
        if isinstance(allowed, str):
            raise ValueError(f"give a list of hosts and networks, such as [{allowed!r}]")
        networks: list[Network] = []
        hosts: set[str] = set()
        for each in allowed:
            try:
                networks.append(ipaddress.ip_network(each.strip("[]")))
            except ValueError as error:
                if not each or not set(each.lower()) <= _HOST or "/" in each or _is_number(each):
                    raise ValueError(
                        f"{each!r} is no host, no address and no network such as 10.1.0.0/16"
                    ) from error
                hosts.add(_normalize(each))
        return cls(networks=tuple(networks), hosts=frozenset(hosts))

    def trusts(self, host: str) -> bool:
        """Return whether a host is allowed by name, whatever its addresses."""
        return _normalize(host) in self.hosts

    def check_address(self, address: str) -> None:
        """Raise ``ForbiddenAddress`` if an address must not be dialled."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            raise ForbiddenAddress(address, "malformed") from None
        for each in _effective(parsed):
            kind = address_kind(each)
            if not kind or (self.private and kind in _PRIVATE_KINDS):
                continue
            if not any(each.version == net.version and each in net for net in self.networks):
                raise ForbiddenAddress(address, kind)

    def check_host(self, host: str) -> None:
        """Raise ``ForbiddenAddress`` if the host of a URL is forbidden, without resolving it.

        A name that passes may still resolve to a forbidden address.
        """
        name = _normalize(host)
        if name in self.hosts:
            return
        literal = _literal(name)
        if literal is not None:
            self.check_address(literal)
        elif not self.private and (
            "." not in name
            or any(name == each or name.endswith(f".{each}") for each in _LOCAL_NAMES)
        ):
            raise ForbiddenAddress(host, "local")

    def connector(
        self, *, resolver: AbstractResolver | None = None, **options: Any
    ) -> aiohttp.TCPConnector:
        """Return a connector that dials only allowed addresses, with options of ``TCPConnector``.

        A name is resolved once per connection, and rejected if one of its addresses is forbidden:
        the error has a ``ForbiddenAddress`` for a cause (see ``find_forbidden``). The connector
        does not know ``hosts``: use another one for those.
        """
        guard = _DialGuard(self, resolver or _ThreadedResolver())
        return bounded_connector(
            resolver=cast("AbstractResolver", guard),
            use_dns_cache=False,
            socket_factory=guard.socket,
            **options,
        )


def find_forbidden(error: BaseException) -> ForbiddenAddress | None:
    """Return the ``ForbiddenAddress`` among the causes of an error, if any."""
    return find_cause(error, ForbiddenAddress)


def find_cause(error: BaseException, kind: type[E]) -> E | None:
    """Return the error of a kind among the causes of an error, if any."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, kind):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def address_kind(address: Address) -> str:
    """Return the kind of an address, empty for one of the public internet."""
    for network, kind in _NETWORKS:
        if address.version == network.version and address in network:
            return kind
    if address.version == 6 and address not in _GLOBAL:
        return "reserved"
    return ""


class _Resolver(Protocol):
    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]: ...


class _ThreadedResolver:
    """Resolves names in its own threads, fairly: slow names of one caller delay no other's."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_LOOKUPS, "parley-lookup")
        self._free = MAX_LOOKUPS
        self._used: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def _look_up(self, look_up: Callable[[], list[Any]]) -> list[Any]:
        """Run a look-up once its caller may have a thread. A cancelled one keeps its thread."""
        loop, caller = asyncio.get_running_loop(), lookup_caller.get()
        while self._used[caller] >= self._free:
            waiter = loop.create_future()
            self._waiting[waiter] = None
            try:
                await waiter
            finally:
                self._waiting.pop(waiter, None)

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._release, caller)

        self._count(caller, 1)
        job = self._threads.submit(look_up)
        job.add_done_callback(ended)
        return await asyncio.wrap_future(job)

    def _count(self, caller: str, count: int) -> None:
        self._free -= count
        self._used[caller] += count
        if not self._used[caller]:
            del self._used[caller]

    def _release(self, caller: str) -> None:
        self._count(caller, -1)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        look_up = partial(
            socket.getaddrinfo,
            host,
            port,
            family=family,
            type=socket.SOCK_STREAM,
            flags=socket.AI_ADDRCONFIG,
        )
        found = await self._look_up(look_up)
        return [
            {
                "hostname": host,
                "host": address[0],
                "port": address[1],
                "family": family,
                "proto": protocol,
                "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            }
            for family, _, protocol, _, address in found
        ]


class _DialGuard:
    """Resolves names and makes sockets, both only for allowed addresses."""

    def __init__(self, egress: Egress, resolver: _Resolver) -> None:
        self._egress = egress
        self._resolver = resolver

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[Any]:
        found = await self._resolver.resolve(host, port, family)
        for each in found:
            self._egress.check_address(each["host"])
        return found

    def socket(self, info: Any) -> socket.socket:
        """Return a socket for an address. Literal addresses of a URL are only checked here."""
        family, kind, protocol, _, address = info
        self._egress.check_address(address[0])
        return socket.socket(family, kind, protocol)


def _effective(address: Address) -> list[Address]:
    """Return the addresses to check for one: itself, or the IPv4 ones that it contains."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    packed = address.packed
    for network, place in _WRAPPING:
        if address in network:
            return [ipaddress.IPv4Address(packed[place : place + 4])]
    if address in _TEREDO:  # the server's address, and the client's with all bits inverted
        client = bytes(byte ^ 0xFF for byte in packed[12:])
        return [ipaddress.IPv4Address(packed[4:8]), ipaddress.IPv4Address(client)]
    is_compatible = address in _IPV4_COMPATIBLE and int(address) > 0xFFFF
    if is_compatible or packed[8:12] in _ISATAP:
        return [address, ipaddress.IPv4Address(packed[12:])]
    return [address]


def normalize_host(host: str) -> str:
    """Return the host of a URL as it is looked up: in ASCII, in lower case.

    Raises ``ValueError`` for an invalid host, and for addresses in forms that only some programs
    accept (2130706433, 0x7f.1, 127.1).
    """
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise ValueError("an IPv6 address in brackets, without a zone") from None
    if not host.isascii() or "xn--" in host.lower():
        host = _in_ascii(host)
    name = host.lower().removesuffix(".")
    if _is_number(name):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise ValueError("an IPv4 address as four numbers, such as 192.0.2.1") from None
    if len(name) > MAX_NAME_LENGTH or not all(map(_LABEL.fullmatch, name.split("."))):
        raise ValueError(
            "a name of labels of up to 63 letters, digits and hyphens, with dots between them"
        )
    return name


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL."""
    try:
        address = urlsplit(url)
        port = address.port or (443 if address.scheme == "https" else 80)
    except ValueError:
        return ""
    return f"{address.scheme}://{address.hostname}:{port}"


def _in_ascii(host: str) -> str:
    """Return an internationalized name as it is looked up. Raises ``ValueError``."""
    import yarl  # which the HTTP client uses

    try:
        url = yarl.URL(f"http://{host}/")
        return (url.host and url.raw_host) or ""  # the first reads what the second writes
    except ValueError:
        raise ValueError("a name that can be written in ASCII (IDNA)") from None


MAX_NAME_LENGTH = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")

_HOST = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")


def _normalize(host: str) -> str:
    return host.lower().strip("[]").removesuffix(".")


def _is_number(host: str) -> bool:
    """Return whether a name may be taken for an address: its last label is a number."""
    last = host.removesuffix(".").rpartition(".")[2].lower()
    return last.isdigit() or (last.startswith("0x") and set(last[2:]) <= set("0123456789abcdef"))


def _literal(host: str) -> str | None:
    """Return the address of a host that is one, in its old forms too (127.1, 0x7f.1)."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _is_number(host):
        return None
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return host  # malformed
