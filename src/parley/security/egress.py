"""Egress policy (an SSRF guard): the allowed destinations of requests that foreign data causes.

A URL from a caller or another server may point into the server's own network: to a database, to a
cloud's metadata service, to the server itself. Therefore the address is checked when a connection
is made, after name resolution, which defeats DNS rebinding. Literal addresses and local names are
rejected earlier.
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
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from parley.model.errors import an
from parley.observe import metrics
from parley.security.response_limits import bounded_connector

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

# -- hosts ------------------------------------------------------------------------------------

MAX_NAME_LENGTH = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_LOCAL_NAMES = ("localhost", "local", "localdomain", "internal", "intranet", "lan", "home.arpa")


def normalize_host(host: str) -> str:
    """Return the host of a URL in the form of a DNS query: in ASCII and lower case.

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
    if is_number(name):
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


def bare_name(host: str) -> str:
    """Return a host in the form of a policy's lists, even if the host is malformed."""
    name = host.strip("[]")
    if not name.isascii():
        try:
            return normalize_host(name)
        except ValueError:
            return name.lower()
    return name.lower().removesuffix(".")


def is_local_name(name: str) -> bool:
    """Return whether a name exists only in local networks."""
    return "." not in name or any(
        name == each or name.endswith(f".{each}") for each in _LOCAL_NAMES
    )


def is_number(host: str) -> bool:
    """Return whether a name could be read as an address: its last label is a number."""
    last = host.removesuffix(".").rpartition(".")[2].lower()
    return last.isdigit() or (last.startswith("0x") and set(last[2:]) <= set("0123456789abcdef"))


def literal_of(host: str) -> str | None:
    """Return the address that a host stands for, ``None`` for a name. Reads 127.1 and 0x7f.1
    too."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not is_number(host):
        return None
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return host  # malformed


def _in_ascii(host: str) -> str:
    """Return the ASCII form of an internationalized name. Raises ``ValueError``."""
    import yarl  # the URL library of the HTTP client

    try:
        url = yarl.URL(f"http://{host}/")
        return (url.host and url.raw_host) or ""  # reading host fails for an invalid raw_host
    except ValueError:
        raise ValueError("a name that can be written in ASCII (IDNA)") from None


# -- addresses --------------------------------------------------------------------------------

E = TypeVar("E", bound=BaseException)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# The registries of special-purpose addresses (RFC 6890 and its successors), written out because
# ``ipaddress`` classifies some of them differently in different Python versions.
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

PRIVATE_KINDS = frozenset({"loopback", "private", "shared", "translated"})
"""The kinds that ``private`` allows. Link-local is not among them: clouds serve credentials
there."""

DENIED = "denied"
"""The kind of addresses on a deny-list."""

UNLISTED = "disallowed"
"""The kind of addresses outside the allow-list of a policy that allows nothing else."""

PORT = "port"
"""The kind of addresses whose port belongs to another protocol than HTTP."""

# IPv6 networks whose addresses contain an IPv4 address, and its offset.
_IPV4_COMPATIBLE = ipaddress.ip_network("::/96")
_WRAPPING = [
    (ipaddress.ip_network("::ffff:0:0/96"), 12),
    (ipaddress.ip_network("64:ff9b::/96"), 12),
    (ipaddress.ip_network("2002::/16"), 2),
]
_TEREDO = ipaddress.ip_network("2001::/32")
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")


class ForbiddenAddress(OSError):
    """The policy forbids an address.

    ``kind`` is the kind of the address, and ``where`` describes it in words. ``option`` is the
    setting that would allow the address, empty if there is none, and ``place`` the value for that
    setting.
    """

    def __init__(self, host: str, kind: str, *, port: int = 0, option: str = "") -> None:
        self.kind = kind
        self.option = option
        if metrics.current is not None:
            metrics.current.of("refused_addresses", kind).inc()
        shown = self.place = host[:100]
        if kind == PORT:
            self.place = f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"
            self.where = f"on port {port}, which other protocols than HTTP use"
            super().__init__(f"{shown} is {self.where}")
        else:
            self.where = f"at {an(kind)} address"
            super().__init__(f"{shown} is {an(kind)} address")


def find_forbidden(error: BaseException) -> ForbiddenAddress | None:
    """Return the ``ForbiddenAddress`` among the causes of an error, if any."""
    return find_cause(error, ForbiddenAddress)


def find_cause(error: BaseException, kind: type[E]) -> E | None:
    """Return the error of this type among the causes of an error, if any."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, kind):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def address_kind(address: Address) -> str:
    """Return the kind of an address, empty for a public address."""
    for network, kind in _NETWORKS:
        if address.version == network.version and address in network:
            return kind
    if address.version == 6 and address not in _GLOBAL:
        return "reserved"
    return ""


def effective_addresses(address: Address) -> list[Address]:
    """Return the addresses to check for an address: itself, or the IPv4 addresses in it."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    packed = address.packed
    for network, place in _WRAPPING:
        if address in network:
            return [ipaddress.IPv4Address(packed[place : place + 4])]
    if address in _TEREDO:  # contains the server's address, and the client's with inverted bits
        client = bytes(byte ^ 0xFF for byte in packed[12:])
        return [ipaddress.IPv4Address(packed[4:8]), ipaddress.IPv4Address(client)]
    is_compatible = address in _IPV4_COMPATIBLE and int(address) > 0xFFFF
    if is_compatible or packed[8:12] in _ISATAP:
        return [address, ipaddress.IPv4Address(packed[12:])]
    return [address]


# -- places -----------------------------------------------------------------------------------

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ANY = "*"
_IN_BRACKETS = re.compile(r"\[([^\[\]]+)\](?::(\d+))?")
_WITH_PORT = re.compile(r"([^:\[\]]*):(\d+)")
_NAME = re.compile(r"[^\s:/\[\]@?#\\]+")


class Place(msgspec.Struct, frozen=True):
    """A destination of requests, in an allow-list or a deny-list.

    ``name`` is a host in lower case, ``*.domain`` for all hosts below a domain, or ``*`` for all
    hosts. If ``name`` is empty, ``network`` has the addresses. ``port`` 0 stands for all ports.
    """

    name: str = ""
    network: Network | None = None
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place for an operator's text. Raises ``ValueError`` with the valid forms."""
        host, port = text, "0"
        if match := _IN_BRACKETS.fullmatch(text):
            host, port = match[1], match[2] or "0"
        elif match := _WITH_PORT.fullmatch(text):
            host, port = match[1] or ANY, match[2]
        try:
            if len(port) > 5 or int(port) > 65535 or (port != "0" and not int(port)):
                raise ValueError("a port from 1 to 65535")
            if host == ANY:
                return cls(name=ANY, port=int(port))
            return cls._of(host, int(port))
        except ValueError as error:
            raise ValueError(
                f"{text!r} is no host, no address and no network: write hooks.example.com, "
                "*.example.com, 10.1.0.0/16 or [fd00::1], each with a port (:8443) or without"
            ) from error

    @classmethod
    def _of(cls, host: str, port: int) -> Place:
        try:
            return cls(network=ipaddress.ip_network(host), port=port)
        except ValueError:
            if "/" in host or ":" in host or is_number(host):
                raise
        prefix, rest = ("*.", host[2:]) if host.startswith("*.") else ("", host)
        if not _NAME.fullmatch(rest):
            raise ValueError("a host")
        return cls(name=prefix + normalize_host(rest), port=port)

    def has_name(self, host: str) -> bool:
        """Return whether this place names a host, on any port."""
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        return bool(host) and self.name in (host, ANY)

    def has(self, host: str, addresses: Iterable[Address], port: int) -> bool:
        """Return whether this place includes a host or one of its addresses, on this port."""
        if self.port not in (0, port):
            return False
        if self.name == ANY:
            return True
        return self.has_name(host) if self.network is None else any(map(self.covers, addresses))

    def covers(self, address: Address) -> bool:
        """Return whether an address is in the network, on any port."""
        network = self.network
        return network is not None and address.version == network.version and address in network


def places(given: Iterable[str]) -> tuple[Place, ...]:
    """Return the places of a list. Raises ``ValueError`` for a malformed place or a single
    string."""
    if isinstance(given, str):
        raise ValueError(f"give a list of hosts and networks, such as [{given!r}]")
    return tuple(Place.parse(each.strip()) for each in given)


# -- dialing ----------------------------------------------------------------------------------

on_dial: ContextVar[Callable[[str], None] | None] = ContextVar("parley_on_dial", default=None)
"""Called with each address before a connection to it is made. May raise ``OSError``."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def dialled(address: str) -> None:
    """Call ``on_dial`` of the current context with an address."""
    told = on_dial.get()
    if told is not None:
        told(address)


def site_of(address: str) -> str:
    """Return the part of an address that identifies a site: all of IPv4, the first 64 bits of IPv6.

    An IPv4 address inside an IPv6 one (mapped, NAT64, 6to4) stands for the IPv6 address.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    inner = parsed.ipv4_mapped or parsed.sixtofour
    if inner is None and parsed in _NAT64:
        inner = ipaddress.IPv4Address(parsed.packed[12:])
    if inner is not None:
        return str(inner)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


MAX_LOOKUPS = 64
"""The number of concurrent DNS look-ups of a connector."""

lookup_caller: ContextVar[str] = ContextVar("parley_looked_up_for", default="")
"""The caller for whom a call is made. No caller may use more than half of the look-ups."""


class ThreadedLookup:
    """Resolves names in its own threads, fairly: slow names of one caller do not delay another.

    It has the method of aiohttp's resolvers.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_LOOKUPS, "parley-lookup")
        self._free = MAX_LOOKUPS
        self._used: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def _look_up(self, look_up: Callable[[], list[Any]]) -> list[Any]:
        """Run a look-up when its caller may use a thread. A cancelled look-up keeps its thread."""
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
        """Return the addresses of a name. Raises ``OSError``."""
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


Judge = Callable[..., None]
"""Raises ``ForbiddenAddress`` for an address and port. ``host`` is the name of the address."""


class DialGuard:
    """Resolves names and makes sockets for a connector, and permits only allowed addresses.

    ``judge`` checks the addresses of a name. ``judge_socket`` checks the address of a connection,
    without its name: literal addresses in URLs are seen only there. ``make`` makes the sockets.
    """

    def __init__(
        self,
        lookup: AbstractResolver | ThreadedLookup,
        judge: Judge,
        judge_socket: Judge,
        make: Callable[[Any], socket.socket] | None = None,
    ) -> None:
        self._lookup = lookup
        self._judge = judge
        self._judge_socket = judge_socket
        self._make = make

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[Any]:
        """Return the addresses of a name, all of them allowed. Raises ``ForbiddenAddress``."""
        found = await self._lookup.resolve(host, port, family)
        for each in found:
            self._judge(each["host"], port, host=host)
        return found

    def socket(self, info: Any) -> socket.socket:
        """Return a socket for an allowed address. Raises ``ForbiddenAddress``."""
        family, kind, protocol, _, address = info
        self._judge_socket(address[0], address[1], host="")
        dialled(address[0])
        return socket.socket(family, kind, protocol) if self._make is None else self._make(info)


# -- ports ------------------------------------------------------------------------------------

# Ports that are closed to requests caused by foreign data, unless the operator names them. Simple
# protocols (mail, Redis, memcached) read the lines of an HTTP request as commands, and the author
# of a URL chooses some of these lines. Therefore the ports of such protocols, of databases and of
# machines' control planes are closed; web servers rarely use them.
_OF_OTHERS = frozenset(
    {
        7, 13, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 79, 87, 95,
        # echo to quote, FTP, SSH, Telnet, SMTP, time, WINS, whois, DNS, TFTP, finger
        101, 102, 103, 104, 109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 138, 139,
        143, 161, 162, 179, 194, 220, 389, 427, 445, 465, 464,
        # POP, portmapper, ident, NNTP, NTP, NetBIOS, IMAP, SNMP, BGP, LDAP, SLP, SMB, Kerberos
        512, 513, 514, 515, 526, 530, 531, 532, 540, 543, 544, 548, 554, 556, 563, 587,
        601, 623, 631, 636, 646, 666, 847, 860, 873, 989, 990, 992, 993, 995,
        # rexec, rlogin, syslog, printing, AFP, RTSP, mail submission, IPMI, rsync, FTPS, IMAPS
        1433, 1434, 1521, 1719, 1720, 1723,  # SQL Server, Oracle, H.323, PPTP
        2049, 2181, 2375, 2376, 2379, 2380,  # NFS, ZooKeeper, Docker, etcd
        3268, 3269, 3306, 3389,  # LDAP catalogs, MySQL, RDP
        4045, 4190, 4222, 4369,  # NFS locks, Sieve, NATS, Erlang
        5060, 5061, 5222, 5432, 5672, 5900,  # SIP, XMPP, PostgreSQL, AMQP, VNC
        6000, 6379, 6432, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697,  # X11, Redis, SANE, IRC
        9042, 9092, 10080, 10250, 10255, 11211, 26379, 27017, 27018, 27019,
        # Cassandra, Kafka, Amanda, kubelet, memcached, Redis Sentinel, MongoDB
    }
)  # fmt: skip


# -- policy -----------------------------------------------------------------------------------

LOOPBACK = ("127.0.0.0/8", "::1", "localhost", "*.localhost")
"""This machine, as entries of a policy."""


class Egress(msgspec.Struct, frozen=True):
    """An egress policy: the public internet by default, with additions and restrictions.

    ``private`` allows private networks and this machine. ``allowed`` places are allowed whatever
    their addresses are, ``denied`` places never. Without ``public`` only ``allowed`` places are
    allowed. Ports of other protocols than HTTP are closed unless ``allowed`` names them. ``outer``
    is a second policy that must allow an address too. ``option`` is the setting that extends this
    policy; errors name it.
    """

    private: bool = False
    public: bool = True
    allowed: tuple[Place, ...] = ()
    denied: tuple[Place, ...] = ()
    outer: Egress | None = None
    option: str = ""

    @classmethod
    def of(
        cls, *, allow: bool | Iterable[str] = (), deny: Iterable[str] = (), public: bool = True
    ) -> Egress:
        """Return a policy: ``Egress.of(allow=["10.1.0.0/16"], deny=["*.example.net"])``.

        A place is a host, ``*.domain`` for all hosts below a domain, an address or a network; with
        a port (``hooks.internal:8443``, ``*:8025``) it covers only that port. ``allow`` is added to
        the public internet; ``True`` adds all private networks and this machine. ``deny`` takes
        precedence over ``allow``. Without ``public`` only ``allow`` is allowed. A port of another
        protocol than HTTP must be named, as in ``hooks.internal:25``; ``*:25`` opens it on every
        allowed host. Raises ``ValueError``.
        """
        return cls(public=public).adding(allow).denying(deny)

    @classmethod
    def allowing(cls, allowed: bool | Iterable[str]) -> Egress:
        """Return the policy for a setting: ``True`` for all private networks, or a list of places.

        Raises ``ValueError`` for any other value.
        """
        return cls().adding(allowed)

    def adding(self, allowed: bool | Iterable[str], *, option: str = "") -> Egress:
        """Return a policy that allows these too, by the setting ``option``. Raises
        ``ValueError``."""
        option = option or self.option
        if isinstance(allowed, bool):
            return msgspec.structs.replace(self, private=self.private or allowed, option=option)
        added = places(allowed)
        if Place(name=ANY) in added:
            raise ValueError(
                "'*' would allow every address: name hosts and networks, or allow all private "
                "networks with True"
            )
        return msgspec.structs.replace(self, allowed=(*self.allowed, *added), option=option)

    def denying(self, denied: Iterable[str]) -> Egress:
        """Return a policy that denies these too. Raises ``ValueError``."""
        return msgspec.structs.replace(self, denied=(*self.denied, *places(denied)))

    def within(self, outer: Egress | None) -> Egress:
        """Return a policy that allows the addresses that both policies allow."""
        if outer is None or outer == self or outer == self.outer:
            return self
        if self.outer is not None:
            outer = self.outer.within(outer)
        return msgspec.structs.replace(self, outer=outer)

    def trusts(self, host: str) -> bool:
        """Return whether a host is allowed by name, whatever its addresses are. See
        ``connector``."""
        name = bare_name(host)
        own = any(each.name != ANY and each.has_name(name) for each in self.allowed)
        return own or (self.outer is not None and self.outer.trusts(host))

    def check_address(self, address: str, port: int = 0, *, host: str = "") -> None:
        """Raise ``ForbiddenAddress`` if a connection to an address is forbidden.

        ``host`` is the name that was resolved to the address, if any.
        """
        if self.outer is not None:
            self.outer.check_address(address, port, host=host)
        name, effective, known = _read(address, host)
        self._check_denied(address, name, known, port)
        for each in effective:
            kind = address_kind(each)
            if (self.private and kind in PRIVATE_KINDS) or (self.public and not kind):
                continue
            if name and self._allows_name(name, port):
                continue
            if not any(place.port in (0, port) and place.covers(each) for place in self.allowed):
                raise ForbiddenAddress(address, kind or UNLISTED, option=self.option)
        self._check_port(address, name, known, port)

    def check_host(self, host: str, port: int = 0) -> None:
        """Raise ``ForbiddenAddress`` if the host of a URL is forbidden, without resolving it.

        A name that passes may still resolve to a forbidden address.
        """
        name = bare_name(host)
        literal = literal_of(name)
        if literal is not None:
            self.check_address(literal, port)
            return
        if self.outer is not None:
            self.outer.check_host(host, port)
        self._check_denied(host, name, (), port)
        networks = any(each.network is not None for each in self.allowed)
        if not networks:
            self._check_port(host, name, (), port)
        if self.private or networks or self._allows_name(name, port):
            return
        if is_local_name(name):
            raise ForbiddenAddress(host, "local", option=self.option)
        if not self.public:
            raise ForbiddenAddress(host, UNLISTED, option=self.option)

    def connector(
        self,
        *,
        resolver: AbstractResolver | ThreadedLookup | None = None,
        trusted: bool = False,
        **options: Any,
    ) -> aiohttp.TCPConnector:
        """Return a connector with options of ``TCPConnector`` that connects to allowed addresses
        only.

        A name is resolved once per connection, and rejected if one of its addresses is forbidden:
        the error has a ``ForbiddenAddress`` as its cause (see ``find_forbidden``). Hosts that the
        policy ``trusts`` need a separate connector (``trusted``), which accepts only names.
        """
        guard = DialGuard(
            resolver or ThreadedLookup(),
            self.check_address,
            self._check_resolved if trusted else self.check_address,
            options.pop("socket_factory", None),
        )
        return bounded_connector(
            resolver=cast("AbstractResolver", guard),
            use_dns_cache=False,
            socket_factory=guard.socket,
            **options,
        )

    async def resolve(self, host: str, port: int, lookup: ThreadedLookup) -> list[str]:
        """Return the addresses to connect to for a host, for clients without a connector.

        Raises ``ForbiddenAddress`` if one of them is forbidden, and ``OSError``.
        """
        self.check_host(host, port)
        literal = literal_of(bare_name(host))
        if literal is not None:
            return [literal]
        guard = DialGuard(lookup, self.check_address, self.check_address)
        found = await guard.resolve(host, port, 0)
        return list(dict.fromkeys(each["host"] for each in found))

    def _allows_name(self, name: str, port: int) -> bool:
        return any(
            each.name != ANY and each.port in (0, port) and each.has_name(name)
            for each in self.allowed
        )

    def _check_resolved(self, address: str, port: int, *, host: str) -> None:
        """Raise ``ForbiddenAddress`` for a denied address. Other rules were checked with its
        name."""
        if self.outer is not None:
            self.outer._check_resolved(address, port, host=host)
        self._check_denied(address, "", _read(address, "")[2], port)

    def _check_denied(
        self, shown: str, name: str, addresses: tuple[Address, ...], port: int
    ) -> None:
        if any(each.has(name, addresses, port) for each in self.denied):
            raise ForbiddenAddress(shown, DENIED)

    def _check_port(self, shown: str, name: str, addresses: tuple[Address, ...], port: int) -> None:
        if port in _OF_OTHERS and not any(
            each.port == port and each.has(name, addresses, port) for each in self.allowed
        ):
            raise ForbiddenAddress(shown, PORT, port=port, option=self.option)


def _read(address: str, host: str) -> tuple[str, list[Address], tuple[Address, ...]]:
    """Return the name, the addresses to check, and these together with the address itself.

    Raises ``ForbiddenAddress``.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise ForbiddenAddress(address, "malformed") from None
    effective = effective_addresses(parsed)
    return bare_name(host), effective, (parsed, *effective)


turn_egress: ContextVar[Egress | None] = ContextVar("parley_turn_egress", default=None)
"""The policy of the agent whose turn runs. It applies to all client calls in that turn."""
