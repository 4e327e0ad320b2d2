"""The publisher, the identifiers and the pages of a server's catalogs, from its options."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Self
from urllib.parse import urlsplit

import msgspec

from parley.model.cards import AgentCard
from parley.registry.catalog.entries import (
    CATALOG_PATH,
    CATALOG_PATHS,
    PUBLISHER_VARIABLE,
    AirUrn,
    InvalidUrn,
    domain,
    is_within,
    segment,
)
from parley.registry.served.catalog import CatalogItem, CatalogPage, ManifestSigner
from parley.security.networks import is_loopback, is_plain_public
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.catalog_link import ServedAgent
from parley.server.cards.index import ASSISTANTS
from parley.server.endpoint import Endpoint
from parley.server.settings import Settings

NAMESPACE = "agent"
"""The namespace of identifiers, unless the operator names another."""

CATALOG_NAME = "catalog"
"""The name of a tenant's catalog, in the namespace of the tenant."""


class Publication(msgspec.Struct, frozen=True):
    """The operator's decision to publish a catalog.

    ``publisher`` is a domain that the operator controls, and the root of all identifiers.
    ``unlisted`` are the paths of agents and the tenants that the catalog leaves out.
    """

    publisher: str
    namespace: tuple[str, ...] = (NAMESPACE,)
    unlisted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, publisher: str, namespace: str = NAMESPACE, unlisted: Iterable[str] = ()) -> Self:
        """Return a publication. Raises ``ValueError`` for an invalid domain or namespace."""
        if not isinstance(publisher, str):
            raise ValueError(f"publisher= is a domain such as example.com, not {publisher!r}")
        try:
            found = domain(publisher)
        except InvalidUrn as error:
            raise ValueError(f"publisher= cannot be used: {error}") from None
        words = (
            "namespace= is made of letters, digits, '.', '_' and '-', with ':' between its parts, "
            f"such as agent or finance:trading; not {namespace!r}"
        )
        if not isinstance(namespace, str):
            raise ValueError(words)
        try:
            parts = AirUrn.parse(f"urn:air:{found}:{namespace}:name").namespace
        except InvalidUrn:
            raise ValueError(words) from None
        if isinstance(unlisted, str):
            raise ValueError(f"unlisted= is a list of paths and tenants, not the text {unlisted!r}")
        names = frozenset(each.rstrip("/") if each[:1] == "/" else each for each in unlisted)
        return cls(found, parts, names)

    def agent(self, path: str, key: str, tenant: str = "") -> str:
        """Return the identifier of an agent: by its path, at the root by its key."""
        return self._identifier(agent_name(path, key), tenant)

    def catalog(self, tenant: str) -> str:
        """Return the identifier of the catalog of a tenant."""
        return self._identifier(CATALOG_NAME, tenant)

    def _identifier(self, name: str, tenant: str) -> str:
        below = (segment(tenant),) if tenant else ()
        return str(AirUrn(self.publisher, (*self.namespace, *below), name))


def agent_name(path: str, key: str) -> str:
    """Return the last segment of an agent's identifier."""
    return segment(path.removeprefix(f"{ASSISTANTS}/").strip("/").replace("/", "-") or key)


def checked_identifiers(given: Iterable[tuple[str, str]]) -> None:
    """Raise ``ValueError`` if two agents have one identifier. ``given`` has it and the place."""
    places: dict[str, str] = {}
    for identifier, place in given:
        other = places.setdefault(identifier, place)
        if other != place:
            raise ValueError(
                f"{other} and {place} would both be published as {identifier}: give them other "
                "paths, tenants or keys (Agent(..., key=...)), or leave one out (unlisted=)"
            )


def catalog_pages(
    publication: Publication,
    served: Iterable[ServedAgent],
    advertised: AdvertisedInterfaces,
    *,
    settings: Settings,
    signer: ManifestSigner | None = None,
) -> dict[str, tuple[CatalogPage, Endpoint | None]]:
    """Return the pages by path, each with the endpoint whose callers may see it.

    The catalog of all agents has none. ``advertised`` tells the address of the server.

    Raises ``ValueError`` if two agents would have one identifier, if ``unlisted`` names what is not
    served, and if it leaves nothing.
    """
    served = tuple(served)
    _check_unlisted(publication, served)
    page = partial(CatalogPage, publisher=publication.publisher, settings=settings, signer=signer)
    items: list[CatalogItem] = []
    pages: dict[str, tuple[CatalogPage, Endpoint | None]] = {}
    places: list[tuple[str, str]] = []
    for each in served:
        endpoint = each.endpoint
        if endpoint.service is not None and each.path not in publication.unlisted:
            identifier = publication.agent(each.path, endpoint.key)
            places.append((identifier, f"the agent at {each.place}"))
            kind = endpoint.agent_type
            items.append(
                CatalogItem(identifier, _card_of(endpoint), each.advertised, agent_type=kind)
            )
        for name, tenant in endpoint.tenants.items():
            if name in publication.unlisted:
                continue
            path, card = f"/{name}", _card_of(tenant)
            where = f"{name} of {each.place}" if each.path else name
            own = CatalogItem(
                publication.agent("", tenant.key, name),
                card,
                each.advertised,
                path=path,
                agent_type=tenant.agent_type,
            )
            nested = CatalogItem(
                publication.catalog(name),
                card,
                each.advertised,
                path=path,
                tenant=name,
                is_catalog=True,
            )
            places += [
                (own.identifier, f"the agent of the tenant {where}"),
                (nested.identifier, f"the catalog of the tenant {where}"),
            ]
            items.append(nested)
            below = page([own], advertised)
            pages |= {each.path + path + end: (below, endpoint) for end in CATALOG_PATHS}
    checked_identifiers(places)
    if not items:
        raise ValueError(
            "unlisted= leaves nothing for the catalog: list an agent, or leave out publisher="
        )
    whole = page(items, advertised)
    return pages | {path: (whole, None) for path in CATALOG_PATHS}


def _card_of(endpoint: Endpoint) -> Callable[[], AgentCard]:
    assert endpoint.card is not None
    return partial(endpoint.card, ())


def _check_unlisted(publication: Publication, served: Iterable[ServedAgent]) -> None:
    known = {each.path for each in served if each.endpoint.service is not None}
    known.update(name for each in served for name in each.endpoint.tenants)
    if unknown := publication.unlisted - known:
        names = ", ".join(sorted(repr(name or "/") for name in unknown))
        raise ValueError(
            f"unlisted= names {names}, which is no path of an agent and no tenant here; there are "
            f"{', '.join(sorted(name or '/' for name in known))}"
        )


log = logging.getLogger("parley.host")

NAMESPACE_VARIABLE = "PARLEY_NAMESPACE"


def read_publication(
    publisher: str | None,
    namespace: str | None = None,
    unlisted: Iterable[str] = (),
    *,
    environ: Mapping[str, str] = os.environ,
) -> Publication | None:
    """Return the publication of a server, ``None`` if it publishes nothing.

    ``None`` for an option leaves it to the environment. Raises ``ValueError`` for what is no domain
    or namespace, and for options that mean nothing without a publisher.
    """
    unlisted = unlisted if isinstance(unlisted, str) else tuple(unlisted)
    domain = environ.get(PUBLISHER_VARIABLE, "") if publisher is None else publisher
    if domain == "":
        given = [*(["namespace"] if namespace else []), *(["unlisted"] if unlisted else [])]
        if given:
            raise ValueError(
                f"{given[0]}= is about the catalog of a server, which publishes one if it has a "
                "publisher= (a domain such as example.com)"
            )
        return None
    if namespace is None:
        namespace = environ.get(NAMESPACE_VARIABLE) or NAMESPACE
    return Publication.of(domain, namespace, unlisted)


def log_publication(publication: Publication, url: str | None, tenants: Iterable[str] = ()) -> None:
    """Log whose names a catalog shows, and warn of an address that registries do not trust."""
    listed = sorted(set(tenants) - publication.unlisted)
    if listed:
        log.info(
            "the catalog names the tenants %s; unlisted= (--unlisted) leaves out one",
            ", ".join(listed),
        )
    parts = urlsplit(url or "")
    host = parts.hostname
    if url is not None and is_plain_public(url):
        log.warning(
            "the catalog is at %s, which is not encrypted: registries do not trust it, and list "
            "none of its agents; give an https:// address (url)",
            url,
        )
    if parts.path.strip("/"):
        log.warning(
            "registries look for a catalog at %s://%s%s, and it is below %s: have the proxy pass "
            "that path on, or set the DNS records that parley catalog dns --url %s prints",
            parts.scheme,
            parts.netloc.rpartition("@")[2],
            CATALOG_PATH,
            parts.path,
            url,
        )
    is_here = is_loopback(host or "") and publication.publisher.endswith(".localhost")
    if host and not is_here and not is_within(host, publication.publisher):
        log.warning(
            "the agents are published as those of %s, and the catalog is at %s, which is not below "
            "that domain: registries that read it there do not list them; serve it below the "
            "domain (url), or prove the domain to the registry and publish the agents there",
            publication.publisher,
            host,
        )
