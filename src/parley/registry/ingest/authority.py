"""Which publishers a source may speak for: those whose domains vouch for it.

A host speaks for its own domain and for those above it, up to the one that somebody can register:
``ai.acme.com`` speaks for ``acme.com``, ``alice.github.io`` for itself and not for ``github.io``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from parley.model.catalog.urn import is_within
from parley.model.distribution import install_command
from parley.registry.ingest.addresses import host_of, is_this_machine, is_well_known_catalog
from parley.registry.records import Authority, Source
from parley.security.loopback import literal_address

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

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
    """Return whether two domains have the same owner: they are below one that was registered."""
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
    """Return the domains that vouch for a catalog nested in one that ``parent`` vouches for."""
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
