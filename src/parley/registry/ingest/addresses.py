"""Addresses that documents of others name: which may be fetched, and for whom they speak.

A host speaks for its own domain and for domains above it, down to the registrable one:
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

# The publishers that a source may speak for: their domains vouch for it.

THIS_MACHINE = "localhost"
"""The domain of all addresses of this machine; it speaks for ``*.localhost``."""

DOMAINS = "domains"
AUTHORITY = "authority"
ROOT = "root"
AUDIENCE = "audience"
"""Members of ``Source.settings``: the domains that vouch for a source, by the source that announced
it; ``operator`` if the operator vouches for its entries; the source that led to it first; and who
sees its entries, and those of what it leads to.
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
    """Return whether anybody may register names below a domain."""
    return bool(_suffixes().is_public(domain))


def any_speaks_for(domains: Iterable[str], publisher: str) -> bool:
    """Return whether one of the domains may speak for a publisher."""
    return any(speaks_for(each, publisher) for each in domains)


def is_same_site(one: str, other: str) -> bool:
    """Return whether two domains have the same owner: they are below one registered domain."""
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

    Its own does if the operator named the source, if that is the well-known catalog of its host, or
    if the host announced it. An address that another site names proves nothing: anybody may be able
    to put a file there.
    """
    found = [domain for domains in announcers_of(source).values() for domain in domains]
    if not source.found_by or is_well_known_catalog(source.url):
        found.append(domain_of(source.url))
    return tuple(dict.fromkeys(each for each in found if each))


def announcers_of(source: Source) -> dict[str, list[str]]:
    """Return the sources that announced a source, each with the domains that vouch for it so."""
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
    """Return the authority that the entries of a source are examined with."""
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
"""In bytes; an index keeps no longer one."""

SCHEMES = ("https", "http")
_KEPT = "/%:@!$&'()*+,;=?~[]|^`{}"
"""Characters of paths and queries that stay as they are written; others are encoded."""


class UnfitAddress(ValueError):
    """An address is none that a registry fetches. The message says why."""


class PlainHosts:
    """The hosts that may be asked over http: this machine, and hosts that the operator names."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed: tuple[Place, ...] = places(allowed)

    def allows(self, host: str, port: int) -> bool:
        """Return whether a host may be asked over http."""
        if is_this_machine(host):
            return True
        literal = literal_address(host)
        addresses = () if literal is None else (literal,)
        return any(each.has(host, addresses, port) for each in self._allowed)


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine by its name or address."""
    return is_loopback(host) or host.lower().rstrip(".").endswith(".localhost")


def host_of(url: str) -> str:
    """Return the host of an address in lower case, empty for none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".").lower()
    except ValueError:
        return ""


def origin_text(url: str) -> str:
    """Return the scheme, host and port of a checked address, as they are written in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def is_well_known_catalog(url: str) -> bool:
    """Return whether an address is the well-known one of a catalog: its host chose the content."""
    parts = urlsplit(url)
    return parts.path in CATALOG_PATHS and not parts.query


def checked_address(text: str, *, near: str = "", plain: PlainHosts | None = None) -> str:
    """Return an address in one form: absolute, with its host in lower case, without a fragment.

    ``near`` is the address that it is relative to. Raises ``UnfitAddress`` for one that is neither
    https nor http to a host that ``plain`` allows.
    """
    if not isinstance(text, str) or len(text) > MAX_ADDRESS or len(near) > MAX_ADDRESS:
        raise UnfitAddress(f"an address has at most {MAX_ADDRESS} characters")
    shown = text[:200]
    if not text.isprintable() or any(char in text for char in ' \\<>"'):
        raise UnfitAddress(f"{shown!r} is no address")
    try:
        parts = urlsplit(urljoin(near, text) if near else text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UnfitAddress(f"{shown!r} is no address") from None
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES or not host:
        raise UnfitAddress(f"{shown!r} is no https address")
    if parts.username is not None or parts.password is not None:
        raise UnfitAddress("an address has no name and no password in it")
    try:
        name = normalize_host(host)
    except ValueError as error:
        raise UnfitAddress(f"the host of {shown!r} is not {error}") from None
    if scheme == "http" and not (plain or PlainHosts()).allows(name, port or 80):
        raise UnfitAddress(f"{shown!r} is not encrypted: https is needed, http is for this machine")
    shape = f"[{name}]" if ":" in name else name
    if port and port != (443 if scheme == "https" else 80):
        shape += f":{port}"
    path, query = quote(parts.path or "/", _KEPT), quote(parts.query, _KEPT)
    whole = urlunsplit((scheme, shape, path, query, ""))
    if len(whole) > MAX_ADDRESS:
        raise UnfitAddress(f"an address has at most {MAX_ADDRESS} characters")
    return whole
