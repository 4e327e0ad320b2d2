"""Addresses in untrusted documents: which may be fetched, and which publishers they represent.

A host speaks for its own domain and for parent domains, down to the registrable domain:
``ai.acme.com`` speaks for ``acme.com``, ``alice.github.io`` for itself and not for ``github.io``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from parley.model.distribution import install_command
from parley.registry.catalog.entries import CATALOG_PATHS, is_within
from parley.registry.records import Authority, Source
from parley.security.egress import Place, normalize_host, places
from parley.security.networks import is_loopback, literal_address

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList


import asyncio
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from parley.registry.catalog.entries import CATALOG_PATH

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver
    from dns.rdata import Rdata

# The publishers that a source may speak for: their domains vouch for the source.

THIS_MACHINE = "localhost"
"""The domain of all addresses of this machine; it speaks for ``*.localhost``."""

DOMAINS = "domains"
AUTHORITY = "authority"
ROOT = "root"
AUDIENCE = "audience"
"""Members of ``Source.settings``: the domains that vouch for a source, by the source that announced
it; ``operator`` if the operator vouches for its entries; the source that first led to it; and the
audience of its entries and of the sources it leads to.
"""


def domain_of(url: str) -> str:
    """Return the host of an address as a domain; ``localhost`` for this machine."""
    host = host_of(url)
    return THIS_MACHINE if is_this_machine(host) else host


def speaks_for(domain: str, publisher: str) -> bool:
    """Return whether a domain may speak for a publisher."""
    if domain == THIS_MACHINE:
        return publisher.endswith(".localhost")
    if domain == publisher:
        return True
    return is_within(domain, publisher) and not _suffixes().is_public(publisher)


def is_public_suffix(domain: str) -> bool:
    """Return whether anyone may register names below a domain."""
    return bool(_suffixes().is_public(domain))


def any_speaks_for(domains: Iterable[str], publisher: str) -> bool:
    """Return whether any of the domains may speak for a publisher."""
    return any(speaks_for(each, publisher) for each in domains)


def is_same_site(one: str, other: str) -> bool:
    """Return whether two domains have the same owner: both are below the same registered domain."""
    if one == other:
        return True
    if not one or not other or THIS_MACHINE in (one, other):
        return False
    if literal_address(one) is not None or literal_address(other) is not None:
        return False
    owner = _suffixes().privatesuffix(one)
    return owner is not None and owner == _suffixes().privatesuffix(other)


def domains_of(source: Source) -> tuple[str, ...]:
    """Return the domains that vouch for a source.

    Its own domain does if the operator added the source, if the source is the well-known catalog of
    its host, or if the host announced it. An address that another site names proves nothing: its
    content may come from anyone who can upload files there.
    """
    found = [domain for domains in announcers_of(source).values() for domain in domains]
    if not source.found_by or is_well_known_catalog(source.url):
        found.append(domain_of(source.url))
    return tuple(dict.fromkeys(each for each in found if each))


def announcers_of(source: Source) -> dict[str, list[str]]:
    """Return the sources that announced a source, each with the domains that vouch for it."""
    given = source.settings.get(DOMAINS)
    if not isinstance(given, Mapping):
        return {}
    return {
        str(name): [each for each in domains if isinstance(each, str)]
        for name, domains in given.items()
        if isinstance(domains, list | tuple)
    }


def domains_of_nested(parent: Iterable[str], url: str) -> tuple[str, ...]:
    """Return the domains that vouch for a catalog nested in a catalog of ``parent``."""
    domain = domain_of(url)
    return tuple(each for each in parent if is_same_site(each, domain))


def authority_of(source: Source) -> Authority:
    """Return the authority with which the entries of a source are validated."""
    is_operators = source.settings.get(AUTHORITY) == Authority.OPERATOR
    return Authority.OPERATOR if is_operators else Authority.DOMAIN


def is_encrypted(url: str) -> bool:
    """Return whether an address is encrypted, or on this machine."""
    return urlsplit(url).scheme == "https" or is_this_machine(host_of(url))


@cache
def _suffixes() -> PublicSuffixList:
    try:
        from publicsuffixlist import PublicSuffixList
    except ModuleNotFoundError:
        raise RuntimeError(
            f"a registry needs the list of public suffixes: {install_command('registry')}"
        ) from None
    return PublicSuffixList()


MAX_ADDRESS = 2000
"""The length limit of an address in bytes, as in the index."""

SCHEMES = ("https", "http")
_KEPT = "/%:@!$&'()*+,;=?~[]|^`{}"
"""Characters of paths and queries that stay unchanged; others are percent-encoded."""


class UnfitAddress(ValueError):
    """A registry does not fetch this address. The message gives the reason."""


class PlainHosts:
    """The hosts that may be called over http: this machine, and hosts that the operator names."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed: tuple[Place, ...] = places(allowed)

    def allows(self, host: str, port: int) -> bool:
        """Return whether a host may be called over http."""
        if is_this_machine(host):
            return True
        literal = literal_address(host)
        addresses = () if literal is None else (literal,)
        return any(each.has(host, addresses, port) for each in self._allowed)


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine, by its name or address."""
    return is_loopback(host) or host.lower().rstrip(".").endswith(".localhost")


def host_of(url: str) -> str:
    """Return the host of an address in lower case, or an empty string."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".").lower()
    except ValueError:
        return ""


def origin_text(url: str) -> str:
    """Return the scheme, host and port of a checked address, unchanged."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def is_well_known_catalog(url: str) -> bool:
    """Return whether an address is a well-known address of a catalog: its host chose
    the content.
    """
    parts = urlsplit(url)
    return parts.path in CATALOG_PATHS and not parts.query


def checked_address(text: str, *, near: str = "", plain: PlainHosts | None = None) -> str:
    """Return an address in canonical form: absolute, with a lower-case host, without a fragment.

    ``near`` is the base of a relative address. Raises ``UnfitAddress`` unless it is https, or http
    to a host that ``plain`` allows.
    """
    if not isinstance(text, str) or len(text) > MAX_ADDRESS or len(near) > MAX_ADDRESS:
        raise UnfitAddress(f"an address may have at most {MAX_ADDRESS} characters")
    shown = text[:200]
    if not text.isprintable() or any(char in text for char in ' \\<>"'):
        raise UnfitAddress(f"{shown!r} is not an address")
    try:
        parts = urlsplit(urljoin(near, text) if near else text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UnfitAddress(f"{shown!r} is not an address") from None
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES or not host:
        raise UnfitAddress(f"{shown!r} is not an https address")
    if parts.username is not None or parts.password is not None:
        raise UnfitAddress("an address may not have a user name or password")
    try:
        name = normalize_host(host)
    except ValueError as error:
        raise UnfitAddress(f"the host of {shown!r} is not {error}") from None
    if scheme == "http" and not (plain or PlainHosts()).allows(name, port or 80):
        raise UnfitAddress(
            f"{shown!r} is not encrypted: use https; http is allowed for this machine only"
        )
    shape = f"[{name}]" if ":" in name else name
    if port and port != (443 if scheme == "https" else 80):
        shape += f":{port}"
    path, query = quote(parts.path or "/", _KEPT), quote(parts.query, _KEPT)
    whole = urlunsplit((scheme, shape, path, query, ""))
    if len(whole) > MAX_ADDRESS:
        raise UnfitAddress(f"an address may have at most {MAX_ADDRESS} characters")
    return whole


# DNS: the location of a domain's catalog (DNS-AID), TXT records, and addresses.

INDEX_LABELS = ("_entries._agents", "_index._agents")
"""The labels below which a domain publishes the location of its entries: of ARD 0.91, and of
DNS-AID.
"""

CAP_KEY = 65400
WELL_KNOWN_KEY = 65409
"""The parameters of SVCB records, by DNS-AID's numbers for private use: the address of a document,
and its path.
"""

MAX_RECORDS = 16
MAX_ALIASES = 2
MAX_TEXT_LENGTH = 2048

_PORT_KEY = 3
_CARDS = ("agent-card.json", "agent.json")
_TEXT_NAMES = ("ard", "ai-catalog", "cap", "well-known", "catalog", "index", "url")


class DnsPointer(msgspec.Struct, frozen=True):
    """The location of a catalog from DNS. ``record`` is the name and type of the record."""

    url: str
    record: str
    is_host_alone: bool = False
    """If true, the record names a host without a path: its catalog is at a well-known address."""


class DnsUnavailable(Exception):
    """A name cannot be looked up now. The message gives the reason."""


class DnsNames:
    """Looks names up, at ``nameservers`` (``192.0.2.53``, ``127.0.0.1:5353``) or the system's.

    It also resolves the hosts of a ``WebFetcher``. Raises ``ValueError`` for an invalid address,
    and if the DNS library is not installed.
    """

    def __init__(self, nameservers: Iterable[str] = (), *, seconds: float = 5.0) -> None:
        if isinstance(nameservers, str):
            raise ValueError(f"nameservers must be a list, such as [{nameservers!r}]")
        self._nameservers = [_server(each) for each in nameservers]
        self.are_named = bool(self._nameservers)
        self._seconds = seconds
        self._made: Resolver | None = None
        try:
            import dns.asyncresolver as _  # noqa: F401
        except ModuleNotFoundError:
            raise ValueError(
                f"look-ups in DNS need dnspython: {install_command('registry')}"
            ) from None

    async def catalogs(self, host: str) -> list[DnsPointer]:
        """Return the locations of a host's catalogs from DNS. Raises ``DnsUnavailable``."""
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
        """Return the TXT records of a name; with ``fresh`` they are requested again, without the
        cache.

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
        """Do nothing: each look-up has its own connection."""

    async def _bound_to(self, name: str, *, is_index: bool) -> list[DnsPointer]:
        """Return the targets of the SVCB records of a name; up to two aliases are followed."""
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
                return []  # the service is not available
            owner = target
        return []

    async def _records(self, name: str, kind: str, *, fresh: bool = False) -> list[Any]:
        """Return the records of a name, or an empty list. Raises ``DnsUnavailable``."""
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
            raise DnsUnavailable(f"{name[:100]!r} is not a domain name") from None
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

    try:
        given = text.strip()
        if given.count(":") > 1 and given[:1] != "[":
            return str(ipaddress.ip_address(given)), 53
        parts = urlsplit(f"//{given}")
        port = 53 if parts.port is None else parts.port
        if port and parts.netloc == given:
            return str(ipaddress.ip_address(parts.hostname or "")), port
    except ValueError:
        pass
    raise ValueError(
        f"{text[:100]!r} is not a name server: give an address, such as 192.0.2.53 or "
        "127.0.0.1:5353"
    )


def _bound(record: Any, owner: str) -> tuple[str, str]:
    """Return the address of the catalog of an SVCB record in service mode, empty if it names only a
    host, and the origin of that host.
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
    """Return the text of a parameter, which may be prefixed by its length, as in lists."""
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
