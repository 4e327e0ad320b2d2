"""Where this process connects to when somebody else named the address.

A URL that a caller gives may lead into the network that the server stands in: to a database, a
cloud's metadata, the server itself. So an address is looked at when it is dialled, after names were
resolved and on the very address that is connected to: a name that answers differently the next time
gains nothing. What a URL shows by itself (a literal address, a name that is local by its form) can
be refused before that.
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

from parley.security.answers import bounded_connector

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

LOOKUPS = 64
"""How many names a connector looks up at once."""

looked_up_for: ContextVar[str] = ContextVar("parley_looked_up_for", default="")
"""On whose behalf a call is made: each has at most as many look-ups as are left for others."""

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

_WITHIN = frozenset({"loopback", "private", "shared", "translated"})
"""What the setting for all private networks allows. Link-local addresses are not among them: on
them clouds hand out credentials."""

# IPv6 networks whose addresses stand for IPv4 ones, and where in the address those are.
_IPV4_COMPATIBLE = ipaddress.ip_network("::/96")
_WRAPPING = [
    (ipaddress.ip_network("::ffff:0:0/96"), 12),
    (ipaddress.ip_network("64:ff9b::/96"), 12),
    (ipaddress.ip_network("2002::/16"), 2),
]
_TEREDO = ipaddress.ip_network("2001::/32")
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")


class ForbiddenAddress(OSError):
    """An address that may not be connected to. The message says what kind of address it is."""

    def __init__(self, host: str, kind: str) -> None:
        self.kind = kind
        super().__init__(f"{host[:100]} is a {kind} address")


class Egress(msgspec.Struct, frozen=True):
    """Which addresses may be connected to: those of the public internet, and what is allowed.

    ``private`` allows the private networks, this machine among them. ``networks`` are allowed
    whatever is in them, and so are ``hosts``, by their names in lower case.
    """

    private: bool = False
    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def allowing(cls, allowed: bool | Iterable[str]) -> Egress:
        """Return the policy for a setting: all private networks, or hosts, addresses, networks.

        Raises ``ValueError`` for what is none of these.
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
                hosts.add(_plain(each))
        return cls(networks=tuple(networks), hosts=frozenset(hosts))

    def trusts(self, host: str) -> bool:
        """Whether a host is allowed by its name, wherever that leads."""
        return _plain(host) in self.hosts

    def check_address(self, address: str) -> None:
        """Look at an address that is about to be connected to. Raises ``ForbiddenAddress``."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            raise ForbiddenAddress(address, "malformed") from None
        for each in _meant(parsed):
            kind = kind_of(each)
            if not kind or (self.private and kind in _WITHIN):
                continue
            if not any(each.version == net.version and each in net for net in self.networks):
                raise ForbiddenAddress(address, kind)

    def check_host(self, host: str) -> None:
        """Look at the host of a URL, without resolving it. Raises ``ForbiddenAddress``.

        It passes names that may yet turn out to lead where nothing may connect to.
        """
        name = _plain(host)
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
        """Return a connector that dials nothing else, with the options of ``TCPConnector``.

        A name is resolved once a connection; it is refused when one of its addresses is. What is
        raised has a ``ForbiddenAddress`` for a cause (see ``forbidden_in``). ``hosts`` are not for
        it to see: give those that are trusted a connector of their own.
        """
        guard = _Guard(self, resolver or _Lookups())
        return bounded_connector(
            resolver=cast("AbstractResolver", guard),
            use_dns_cache=False,
            socket_factory=guard.socket,
            **options,
        )


def forbidden_in(error: BaseException) -> ForbiddenAddress | None:
    """Return the refusal that an error of a client comes from, if it is one."""
    return cause_in(error, ForbiddenAddress)


def cause_in(error: BaseException, kind: type[E]) -> E | None:
    """Return the error of a kind that an error of a client comes from, if it comes from one."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, kind):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def kind_of(address: Address) -> str:
    """Return what makes an address one that is not of the public internet; nothing if it is."""
    for network, kind in _NETWORKS:
        if address.version == network.version and address in network:
            return kind
    if address.version == 6 and address not in _GLOBAL:
        return "reserved"
    return ""


class _Resolver(Protocol):
    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]: ...


class _Lookups:
    """Resolves names in threads of its own: many that are slow hold up no others' look-ups."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, "parley-lookup")
        self._free = LOOKUPS
        self._taken: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def _look_up(self, look_up: Callable[[], list[Any]]) -> list[Any]:
        """Do a look-up when there is a thread for it. One that is given up has its thread still."""
        loop, name = asyncio.get_running_loop(), looked_up_for.get()
        while self._taken[name] >= self._free:
            turn = loop.create_future()
            self._waiting[turn] = None
            try:
                await turn
            finally:
                self._waiting.pop(turn, None)

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._release, name)

        self._take(name, 1)
        job = self._threads.submit(look_up)
        job.add_done_callback(ended)
        return await asyncio.wrap_future(job)

    def _take(self, name: str, count: int) -> None:
        self._free -= count
        self._taken[name] += count
        if not self._taken[name]:
            del self._taken[name]

    def _release(self, name: str) -> None:
        self._take(name, -1)
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)

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


class _Guard:
    """Resolves names and makes sockets, both only for addresses that may be connected to."""

    def __init__(self, egress: Egress, resolver: _Resolver) -> None:
        self._egress = egress
        self._resolver = resolver

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[Any]:
        found = await self._resolver.resolve(host, port, family)
        for each in found:
            self._egress.check_address(each["host"])
        return found

    def socket(self, info: Any) -> socket.socket:
        """Return a socket to connect to an address with: the last moment to refuse it.

        Addresses that were literal in the URL come by no resolver, and so only here.
        """
        family, kind, protocol, _, address = info
        self._egress.check_address(address[0])
        return socket.socket(family, kind, protocol)


def _meant(address: Address) -> list[Address]:
    """Return the addresses that one stands for: itself, or the IPv4 ones inside it."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    packed = address.packed
    for network, place in _WRAPPING:
        if address in network:
            return [ipaddress.IPv4Address(packed[place : place + 4])]
    if address in _TEREDO:  # the server's address, and the client's with all bits turned over
        client = bytes(byte ^ 0xFF for byte in packed[12:])
        return [ipaddress.IPv4Address(packed[4:8]), ipaddress.IPv4Address(client)]
    is_compatible = address in _IPV4_COMPATIBLE and int(address) > 0xFFFF
    if is_compatible or packed[8:12] in _ISATAP:
        return [address, ipaddress.IPv4Address(packed[12:])]
    return [address]


def host_named(host: str) -> str:
    """Return the host of a URL as it will be looked up: in ASCII, in lower case.

    Raises ``ValueError``, which says what is wrong, for one that no machine can have, and for
    addresses in forms that only some read as such (2130706433, 0x7f.1, 127.1).
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
    if len(name) > LONGEST_NAME or not all(map(_LABEL.fullmatch, name.split("."))):
        raise ValueError(
            "a name of labels of up to 63 letters, digits and hyphens, with dots between them"
        )
    return name


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL: what a connection to it is for."""
    try:
        address = urlsplit(url)
        port = address.port or (443 if address.scheme == "https" else 80)
    except ValueError:
        return ""
    return f"{address.scheme}://{address.hostname}:{port}"


def _in_ascii(host: str) -> str:
    """Return a name of other letters as it will be looked up. Raises ``ValueError``."""
    import yarl  # which is what writes the requests

    try:
        url = yarl.URL(f"http://{host}/")
        return (url.host and url.raw_host) or ""  # the first reads what the second writes
    except ValueError:
        raise ValueError("a name that can be written in ASCII (IDNA)") from None


LONGEST_NAME = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")

_HOST = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")


def _plain(host: str) -> str:
    return host.lower().strip("[]").removesuffix(".")


def _is_number(host: str) -> bool:
    """Whether a name would be taken for an address: its last label is a number."""
    last = host.removesuffix(".").rpartition(".")[2].lower()
    return last.isdigit() or (last.startswith("0x") and set(last[2:]) <= set("0123456789abcdef"))


def _literal(host: str) -> str | None:
    """Return the address that a host is, if it is one: in its old forms too (127.1, 0x7f.1)."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _is_number(host):
        return None
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return host  # and thereby malformed
