"""The catalog of a server, as one of its bindings (``docs/guides/extend-parley.md``)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.engine.description import AgentDescription
from parley.host.bindings import ServerParts
from parley.registry.catalog.entries import CATALOG, CATALOG_PATH, CATALOG_PATHS, PUBLISHER_VARIABLE
from parley.server.app import App
from parley.server.cards.catalog_link import CatalogLink
from parley.server.endpoint import AgentBinding, Endpoint

if TYPE_CHECKING:
    from parley.registry.served.catalog import Publication
    from parley.registry.served.registration import AgentRegistrar, RegistryRegistration

log = logging.getLogger("parley.server")


class CatalogBinding(msgspec.Struct, frozen=True, kw_only=True):
    """The catalog that every server can publish, as a binding without messages.

    ``registrar`` publishes agents that register over connections of other bindings; the default is
    the server's registry (``parley.asgi(..., registry=...)``).
    """

    registrar: AgentRegistrar | None = None
    name: ClassVar[str] = "catalog"

    def bind(self, parts: ServerParts) -> ServerCatalog:
        """Return the catalog of one server. Raises ``ValueError`` for invalid options."""
        return ServerCatalog(parts, self.registrar)


class ServerCatalog:
    """The catalog of one server (``BoundBinding``).

    ``publisher`` is the domain of the agents, ``registry`` the address of the registry in which
    they are published; either may be empty. ``registrar`` publishes agents that register over a
    connection.
    """

    def __init__(self, parts: ServerParts, registrar: AgentRegistrar | None) -> None:
        self._publication: Publication | None = None
        given = (parts.publisher, parts.namespace, parts.unlisted)
        if any(given) or os.environ.get(PUBLISHER_VARIABLE):
            from parley.registry.served.catalog import read_publication

            self._publication = read_publication(*given)
        self.publisher = "" if self._publication is None else self._publication.publisher
        self.registry = parts.registry or ""
        self._registration: RegistryRegistration | None = None
        if self.registry:
            from parley.registry.served.registration import RestRegistrar, read_registration

            self._registration = read_registration(
                self.registry, parts.url, publishes=self._publication is not None
            )
            registrar = registrar or RestRegistrar(self.registry, self.publisher)
        self.registrar = registrar
        self._parts = parts
        self._document: Callable[[], bytes] | None = None
        self._tenants: list[str] = []

    @property
    def record(self) -> Mapping[str, Any]:
        """The catalog's settings for the audit log."""
        return {"publisher": self.publisher}

    def of(self, agent: AgentDescription) -> AgentBinding | None:
        """Return ``None``: messages use other bindings."""

    def serve(self, app: App, endpoints: Mapping[str, Endpoint]) -> None:
        """Add the catalog, and links to it. Raises ``ValueError`` for conflicting identifiers."""
        publication, keys, url = self._publication, self._parts.signing_keys, self._parts.url
        if not endpoints:
            return
        if publication is None:
            unpublished = Unpublished(app.handler_at(CATALOG_PATH))
            app.publish(None, {path: (unpublished, None) for path in CATALOG_PATHS})
            return
        from parley.registry.served.catalog import (
            RELATION,
            ROBOTS_PATH,
            ManifestSigner,
            RobotsPage,
            catalog_pages,
        )

        settings = self._parts.settings
        catalogs = catalog_pages(
            publication,
            app.served,
            app.address,
            settings=settings,
            signer=None if keys is None else ManifestSigner(keys, url),
        )
        pages: dict[str, tuple[ASGIApp, Endpoint | None]] = {**catalogs}
        if app.cards_are_public:
            pages[ROBOTS_PATH] = RobotsPage(app.address, settings), None
        app.publish(CatalogLink(CATALOG_PATH, RELATION, CATALOG, url), pages)
        self._document = catalogs[CATALOG_PATH][0].document
        self._tenants = [name for each in endpoints.values() for name in each.tenants]

    async def start(self) -> None:
        """Start publishing in the registry."""
        if self._publication is None or self._document is None:
            return
        from parley.registry.served.catalog import log_publication

        log_publication(self._publication, self._parts.url, self._tenants)
        if self._registration is not None:
            self._registration.start(self._document)

    async def close(self) -> None:
        """Stop publishing."""
        if self._registration is not None:
            await self._registration.stop()


class Unpublished:
    """Answers at the path of a catalog if none is published, and logs once how to publish it."""

    def __init__(self, fallback: ASGIApp) -> None:
        self._fallback = fallback
        self._is_logged = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as for an unknown path."""
        if not self._is_logged:
            self._is_logged = True
            log.info(
                "a client requested %s, but no catalog is published: give the domain of the agents "
                "(publisher=, --publisher or PARLEY_PUBLISHER)",
                CATALOG_PATH,
            )
        await self._fallback(scope, receive, send)
