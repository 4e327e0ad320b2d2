"""``Egress``: the addresses to which requests go that the data of others cause."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

import msgspec

from parley.security.egress.addresses import (
    DENIED,
    PORT,
    PRIVATE_KINDS,
    UNLISTED,
    Address,
    ForbiddenAddress,
    address_kind,
    effective_addresses,
)
from parley.security.egress.dialing import DialGuard, NameLookup, ThreadedLookup
from parley.security.egress.hosts import bare_name, is_local_name, literal_of
from parley.security.egress.places import ANY, Place, places
from parley.security.response_limits import bounded_connector

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

# -- ports ------------------------------------------------------------------------------------
#
# Ports that a request which others cause does not go to, unless the operator names them. The
# lines of an HTTP request are commands for servers of simple protocols (mail, Redis, memcached),
# and whoever names a URL chooses some of these lines. So the ports of protocols that take such
# lines, of databases, and of the control planes of machines are closed; a web server is seldom
# there.


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


def is_of_other_protocols(port: int) -> bool:
    """Return whether a port is that of another protocol than HTTP. 0 stands for no port."""
    return port in _OF_OTHERS


# -- policy -----------------------------------------------------------------------------------


LOOPBACK = ("127.0.0.0/8", "::1", "localhost", "*.localhost")
"""This machine, as a list of places."""


class Egress(msgspec.Struct, frozen=True):
    """The allowed addresses: those of the public internet, and what the policy adds.

    ``private`` allows private networks and this machine. ``allowed`` places are allowed whatever
    their addresses, ``denied`` ones never. Without ``public`` only ``allowed`` ones are. Ports of
    other protocols than HTTP are closed but where ``allowed`` names them. ``outer`` is a policy
    that must allow an address too, ``option`` the setting that adds to this one, for errors.
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

        Places are hosts, ``*.domain`` for all hosts below one, addresses and networks; with a port
        (``hooks.internal:8443``, ``*:8025``) only that port is meant. ``allow`` is added to the
        public internet; ``True`` adds all private networks and this machine. ``deny`` wins over
        ``allow``. Without ``public`` nothing but ``allow`` is allowed. A port of another protocol
        than HTTP has to be named, as in ``hooks.internal:25``; ``*:25`` opens it on every host that
        is allowed otherwise. Raises ``ValueError``.
        """
        return cls(public=public).adding(allow).denying(deny)

    @classmethod
    def allowing(cls, allowed: bool | Iterable[str]) -> Egress:
        """Return the policy for a setting: all private networks, or hosts, addresses, networks.

        Raises ``ValueError`` for anything else.
        """
        return cls().adding(allowed)

    def adding(self, allowed: bool | Iterable[str], *, option: str = "") -> Egress:
        """Return a policy that allows more, by the setting ``option``. Raises ``ValueError``."""
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
        """Return a policy that allows less. Raises ``ValueError``."""
        return msgspec.structs.replace(self, denied=(*self.denied, *places(denied)))

    def within(self, outer: Egress | None) -> Egress:
        """Return a policy that allows what both allow."""
        if outer is None or outer == self or outer == self.outer:
            return self
        if self.outer is not None:
            outer = self.outer.within(outer)
        return msgspec.structs.replace(self, outer=outer)

    def trusts(self, host: str) -> bool:
        """Return whether a host is allowed by name, whatever its addresses: see ``connector``."""
        name = bare_name(host)
        own = any(each.name != ANY and each.has_name(name) for each in self.allowed)
        return own or (self.outer is not None and self.outer.trusts(host))

    def check_address(self, address: str, port: int = 0, *, host: str = "") -> None:
        """Raise ``ForbiddenAddress`` if an address must not be dialled.

        ``host`` is the name that led there, if one did.
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
        resolver: AbstractResolver | NameLookup | None = None,
        trusted: bool = False,
        **options: Any,
    ) -> aiohttp.TCPConnector:
        """Return a connector that dials only allowed addresses, with options of ``TCPConnector``.

        A name is resolved once per connection, and rejected if one of its addresses is forbidden:
        the error has a ``ForbiddenAddress`` for a cause (see ``find_forbidden``). Hosts that the
        policy ``trusts`` need a connector of their own (``trusted``), which is for names only.
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

    async def resolve(self, host: str, port: int, lookup: NameLookup) -> list[str]:
        """Return the addresses to dial for a host, for who dials without a connector.

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
        """Raise ``ForbiddenAddress`` for a denied address; the rest was judged with its name."""
        if self.outer is not None:
            self.outer._check_resolved(address, port, host=host)
        self._check_denied(address, "", _read(address, "")[2], port)

    def _check_denied(
        self, shown: str, name: str, addresses: tuple[Address, ...], port: int
    ) -> None:
        if any(each.has(name, addresses, port) for each in self.denied):
            raise ForbiddenAddress(shown, DENIED)

    def _check_port(self, shown: str, name: str, addresses: tuple[Address, ...], port: int) -> None:
        if is_of_other_protocols(port) and not any(
            each.port == port and each.has(name, addresses, port) for each in self.allowed
        ):
            raise ForbiddenAddress(shown, PORT, port=port, option=self.option)


def _read(address: str, host: str) -> tuple[str, list[Address], tuple[Address, ...]]:
    """Return a name, the addresses to judge, and those with the address itself.

    Raises ``ForbiddenAddress``.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise ForbiddenAddress(address, "malformed") from None
    effective = effective_addresses(parsed)
    return bare_name(host), effective, (parsed, *effective)


turn_egress: ContextVar[Egress | None] = ContextVar("parley_turn_egress", default=None)
"""The policy of the agent whose function runs: it holds for all that the client does there."""
