"""The catalogs of a server: one of all its agents, and one of each tenant below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from parley.model.cards import AgentCard
from parley.model.catalog.entries import CATALOG_PATH
from parley.security.signing.cards import ManifestSigner
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.catalog import CatalogItem, CatalogPage
from parley.server.cards.publication import Publication, checked_identifiers
from parley.server.endpoint import Endpoint
from parley.server.settings import Settings


class PublishedEndpoint(msgspec.Struct, frozen=True):
    """An endpoint of the server, with the path at which it is served."""

    path: str
    endpoint: Endpoint
    advertised: AdvertisedInterfaces

    @property
    def place(self) -> str:
        """The path, for people."""
        return self.path or "/"


def catalog_pages(
    publication: Publication,
    served: Iterable[PublishedEndpoint],
    advertised: AdvertisedInterfaces,
    *,
    settings: Settings,
    signer: ManifestSigner | None = None,
) -> dict[str, tuple[CatalogPage, Endpoint | None]]:
    """Return the pages by path, each with the endpoint whose callers may see it.

    That of all agents has none. ``advertised`` tells the address of the server.

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
            below = f"{name} of {each.place}" if each.path else name
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
                (own.identifier, f"the agent of the tenant {below}"),
                (nested.identifier, f"the catalog of the tenant {below}"),
            ]
            items.append(nested)
            pages[each.path + path + CATALOG_PATH] = page([own], advertised), endpoint
    checked_identifiers(places)
    if not items:
        raise ValueError(
            "unlisted= leaves nothing for the catalog: list an agent, or leave out publisher="
        )
    pages[CATALOG_PATH] = page(items, advertised), None
    return pages


def _card_of(endpoint: Endpoint) -> Callable[[], AgentCard]:
    assert endpoint.card is not None
    return partial(endpoint.card, ())


def _check_unlisted(publication: Publication, served: Iterable[PublishedEndpoint]) -> None:
    known = {each.path for each in served if each.endpoint.service is not None}
    known.update(name for each in served for name in each.endpoint.tenants)
    if unknown := publication.unlisted - known:
        names = ", ".join(sorted(repr(name or "/") for name in unknown))
        raise ValueError(
            f"unlisted= names {names}, which is no path of an agent and no tenant here; there are "
            f"{', '.join(sorted(name or '/' for name in known))}"
        )
