"""DNS: where a domain says that its catalog is (DNS-AID), texts of a name, and addresses.

``_entries._agents.<domain>``, ``_index._agents.<domain>`` and the name itself may have SVCB
records, or TXT records as a fallback (ARD §5.1). The path of a catalog is a parameter that has no
registered number yet: implementations of DNS-AID write it with one for private use.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from parley.model.distribution import install_command
from parley.registry.catalog.entries import CATALOG_PATH

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver
    from dns.rdata import Rdata

INDEX_LABELS = ("_entries._agents", "_index._agents")
"""The labels below which a domain says where its entries are: of ARD 0.91, and of DNS-AID."""

CAP_KEY = 65400
WELL_KNOWN_KEY = 65409
"""The parameters of SVCB records, by the numbers for private use of DNS-AID: the address of a
document, and its path.
"""

MAX_RECORDS = 16
MAX_ALIASES = 2
MAX_TEXT_LENGTH = 2048

_PORT_KEY = 3
_CARDS = ("agent-card.json", "agent.json")
_TEXT_NAMES = ("ard", "ai-catalog", "cap", "well-known", "catalog", "index", "url")


class DnsPointer(msgspec.Struct, frozen=True):
    """Where DNS says that a catalog is. ``record`` is the name and type that said so."""

    url: str
    record: str
    is_host_alone: bool = False
    """Whether the record names a host without a path: its catalog is at a well-known address."""


class DnsUnavailable(Exception):
    """A name could not be looked up now. The message says why."""


class DnsNames:
    """Looks names up, at ``nameservers`` (``192.0.2.53``, ``127.0.0.1:5353``) or the system's.

    It is also what resolves the hosts of a ``WebFetcher``. Raises ``ValueError`` for an address
    that is none, and if the library for DNS is not installed.
    """

    def __init__(self, nameservers: Iterable[str] = (), *, seconds: float = 5.0) -> None:
        if isinstance(nameservers, str):
            raise ValueError(f"nameservers is a list, such as [{nameservers!r}]")
        self._nameservers = [_server(each) for each in nameservers]
        self._seconds = seconds
        self._made: Resolver | None = None
        try:
            import dns.asyncresolver as _  # noqa: F401
        except ModuleNotFoundError:
            raise ValueError(
                f"look-ups in DNS need dnspython: {install_command('registry')}"
            ) from None

    async def catalogs(self, host: str) -> list[DnsPointer]:
        """Return where DNS says that the catalogs of a host are. Raises ``DnsUnavailable``."""
        found: dict[str, DnsPointer] = {}
        for name in (*(f"{label}.{host}" for label in INDEX_LABELS), host):
            is_index = name != host
            pointers = await self._bound_to(name, is_index=is_index)
            pointers = pointers or [
                DnsPointer(url, f"TXT {name}")
                for text in await self.texts(name)
                if (url := _in_text(text, host))
            ]
            for each in pointers:
                found.setdefault(each.url, each)
        return list(found.values())[:MAX_RECORDS]

    async def texts(self, name: str, *, fresh: bool = False) -> list[str]:
        """Return the TXT records of a name; ``fresh`` ones are asked for again, whatever is kept.

        Raises ``DnsUnavailable``.
        """
        records = await self._records(name, "TXT", fresh=fresh)
        texts = [b"".join(each.strings)[:MAX_TEXT_LENGTH] for each in records]
        return [text.decode("utf-8", "replace") for text in texts]

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        """Return the addresses of a name, as the resolvers of aiohttp do. Raises ``OSError``."""
        kinds = {socket.AF_INET: ("A",), socket.AF_INET6: ("AAAA",)}.get(family, ("A", "AAAA"))
        found: list[Any] = []
        failure: Exception | None = None
        answers = await asyncio.gather(
            *(self._records(host, kind) for kind in kinds), return_exceptions=True
        )
        for kind, records in zip(kinds, answers, strict=True):
            if isinstance(records, DnsUnavailable):
                failure = records
                continue
            if isinstance(records, BaseException):
                raise records
            found += [
                {
                    "hostname": host,
                    "host": each.address,
                    "port": port,
                    "family": socket.AF_INET if kind == "A" else socket.AF_INET6,
                    "proto": 0,
                    "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                }
                for each in records
            ]
        if not found:
            raise OSError(None, f"{host} has no address" if failure is None else str(failure))
        return found

    async def close(self) -> None:
        """Do nothing: each look-up has a connection of its own."""

    async def _bound_to(self, name: str, *, is_index: bool) -> list[DnsPointer]:
        """Return the targets of the SVCB records of a name; aliases are followed, twice at most."""
        owner = name
        for _ in range(MAX_ALIASES + 1):
            records = sorted(await self._records(owner, "SVCB"), key=lambda each: each.priority)
            if not records:
                return []
            if records[0].priority > 0:
                urls = [_bound(each, owner) for each in records]
                return [
                    DnsPointer(url or at + CATALOG_PATH, f"SVCB {name}", not url)
                    for url, at in urls
                    if url or (is_index and at)
                ]
            target = records[0].target.to_text(omit_final_dot=True)
            if target in ("", ".", owner):
                return []  # the service is not there
            owner = target
        return []

    async def _records(self, name: str, kind: str, *, fresh: bool = False) -> list[Any]:
        """Return the records of a name, none if it has none. Raises ``DnsUnavailable``."""
        import dns.exception
        import dns.name
        import dns.rdataclass
        import dns.rdatatype
        import dns.resolver

        try:
            resolver = self._resolver()
            if fresh and resolver.cache is not None:
                asked = dns.name.from_text(name)
                for each in (dns.rdatatype.from_text(kind), dns.rdatatype.ANY):
                    resolver.cache.flush((asked, each, dns.rdataclass.IN))
            answer = await resolver.resolve(name, kind, raise_on_no_answer=False)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        except dns.exception.SyntaxError:
            raise DnsUnavailable(f"{name[:100]!r} is no name") from None
        except (dns.exception.DNSException, OSError, ValueError) as error:
            raise DnsUnavailable(
                f"the {kind} records of {name[:100]} cannot be looked up: {type(error).__name__}"
            ) from None
        return [] if answer.rrset is None else list(answer.rrset)[:MAX_RECORDS]

    def _resolver(self) -> Resolver:
        if self._made is None:
            from dns.asyncresolver import Resolver
            from dns.nameserver import Do53Nameserver
            from dns.resolver import LRUCache

            self._made = made = Resolver(configure=not self._nameservers)
            if self._nameservers:
                made.nameservers = [Do53Nameserver(*each) for each in self._nameservers]
            made.lifetime = self._seconds
            made.cache = LRUCache(1000)
        return self._made


def _server(text: str) -> tuple[str, int]:
    """Return the address and port of a name server. Raises ``ValueError``."""
    import ipaddress

    host, port = text.strip(), "53"
    if host.startswith("["):
        host, bracket, rest = host[1:].partition("]")
        host = host if bracket else text
        port = rest.removeprefix(":") or port
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    try:
        return str(ipaddress.ip_address(host)), _port(port)
    except ValueError:
        raise ValueError(
            f"{text[:100]!r} is no name server: write its address, such as 192.0.2.53 or "
            "127.0.0.1:5353"
        ) from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536):
        raise ValueError("a port from 1 to 65535")
    return int(text)


def _bound(record: Any, owner: str) -> tuple[str, str]:
    """Return the address of the catalog of an SVCB record in service mode, empty where it names a
    host alone, and the origin of that host.
    """
    params: Mapping[int, Any] = {int(key): value for key, value in record.params.items()}
    target = record.target.to_text(omit_final_dot=True)
    host = owner if target in ("", ".") else target
    port = getattr(params.get(_PORT_KEY), "port", 443)
    origin = f"https://{host}" if port == 443 else f"https://{host}:{port}"
    whole, path = _param(params.get(CAP_KEY)), _param(params.get(WELL_KNOWN_KEY))
    if path and not path.endswith(_CARDS):
        return origin + (path if path.startswith("/") else f"/.well-known/{path}"), origin
    if whole.startswith("https://") and not whole.endswith(_CARDS):
        return whole, origin
    return "", origin if not (whole or path) else ""


def _param(value: Rdata | Any | None) -> str:
    """Return the text of a parameter, which may have its length before it, as lists have."""
    raw = getattr(value, "value", b"") or b""
    if raw and raw[0] == len(raw) - 1:
        raw = raw[1:]
    text = raw.decode("ascii", "replace")
    return text if text.isascii() and text.isprintable() and " " not in text else ""


def _in_text(text: str, host: str) -> str:
    """Return the address of a catalog in a TXT record: ``ai-catalog=https://...``, or a path."""
    pairs: dict[str, str] = {}
    for part in text.replace(";", " ").split():
        name, separator, value = part.partition("=")
        if separator:
            pairs.setdefault(name.lower(), value.strip('"'))
    for name in _TEXT_NAMES:
        value = pairs.get(name, "")
        if not value or value.endswith(_CARDS):
            continue
        if value.startswith("https://") and (name in _TEXT_NAMES[:2] or value.endswith(".json")):
            return value
        if name == "well-known":
            path = value if value.startswith("/") else f"/.well-known/{value}"
            return f"https://{host}{path}"
    return ""
