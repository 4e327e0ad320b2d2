"""The catalog of a server's agents, at its well-known path (ARD §4, §6.1)."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import formatdate

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.model.cards import AgentCard
from parley.model.catalog.entries import CATALOG, CATALOG_PATH, AICatalog, CatalogEntry
from parley.security.signing.cards import ManifestSigner
from parley.server.address import BadAddress
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.catalog_entries import agent_entry, host_of, tenant_entry
from parley.server.cards.discovery import CARD_PATHS, CardFile, is_fresh
from parley.server.http.responses import refuse_method, reply_with_message, reply_without_body
from parley.server.log import log_unforeseen
from parley.server.settings import Settings
from parley.wire.catalog.entries import write_catalog

log = logging.getLogger("parley.server")

_MAX_FILES = 64
_MEDIA_TYPE = (b"content-type", CATALOG.encode())


class CatalogItem(msgspec.Struct, frozen=True):
    """One entry of a catalog: an agent, or the catalog of a tenant (``is_catalog``).

    ``card`` returns the public card of the agent. ``path`` is the path of what the entry is of,
    below the address of ``advertised``. ``agent_type`` is the type that the agent declares, if any.
    """

    identifier: str
    card: Callable[[], AgentCard]
    advertised: AdvertisedInterfaces
    path: str = ""
    tenant: str = ""
    is_catalog: bool = False
    agent_type: str = ""

    def entry(self, scope: Scope, publisher: str) -> CatalogEntry:
        """Return the entry, with the address that the caller can reach. Raises ``BadAddress``."""
        address = self.advertised.address(scope).rstrip("/") + self.path
        if self.is_catalog:
            url = address + CATALOG_PATH
            return tenant_entry(self.tenant, self.card(), self.identifier, url, publisher)
        url = address + CARD_PATHS[0]
        return agent_entry(self.card(), self.identifier, url, publisher, agent_type=self.agent_type)


class CatalogPage:
    """Serves the catalog of a server, or of one of its tenants.

    Like a card, it is made for each address at which it is asked for, kept for the last 64 of them,
    and made again when it is older than caches may keep it and when the keys change. ``advertised``
    tells the address. The ETag is weak: it stays the same over restarts and on all replicas, whose
    times and signatures may differ.
    """

    def __init__(
        self,
        items: Sequence[CatalogItem],
        advertised: AdvertisedInterfaces,
        *,
        publisher: str,
        settings: Settings,
        signer: ManifestSigner | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._items = items
        self._advertised = advertised
        self._publisher = publisher
        self._max_age = settings.card_max_age
        self._signer = signer
        self._clock = clock
        self._since = int(clock())
        self._files: dict[str, CardFile] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD, conditional ones too."""
        if scope["method"] not in ("GET", "HEAD"):
            await refuse_method(scope, send, "GET, HEAD", "a catalog is read with GET")
            return
        try:
            file = self._file(scope)
        except BadAddress as error:
            await reply_with_message(scope, send, 400, str(error))
            return
        except Exception:
            failure = log_unforeseen("making a catalog")
            await reply_with_message(scope, send, 500, failure.message)
            return
        headers = [
            (b"cache-control", b"public, max-age=%d" % self._max_age),
            (b"etag", b"W/" + file.etag.encode()),
            (b"last-modified", formatdate(file.modified, usegmt=True).encode()),
        ]
        if varies := self._advertised.varies:
            headers.append((b"vary", b", ".join(varies)))
        if is_fresh(scope, file):
            await reply_without_body(send, 304, headers)
            return
        headers += [_MEDIA_TYPE, (b"content-length", b"%d" % len(file.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = file.body if scope["method"] == "GET" else b""
        await send({"type": "http.response.body", "body": body})

    def _file(self, scope: Scope) -> CardFile:
        address = self._advertised.address(scope)
        now = self._clock()
        file = self._files.pop(address, None)
        revision = 0 if self._signer is None else self._signer.revision
        if file is None or now - file.made >= self._max_age or file.revision != revision:
            file = self._make(scope, now, file, revision)
        self._files[address] = file
        if len(self._files) > _MAX_FILES:
            del self._files[next(iter(self._files))]
        return file

    def _make(self, scope: Scope, now: float, before: CardFile | None, revision: int) -> CardFile:
        cards = [item.card() for item in self._items]
        catalog = AICatalog(
            host=host_of(cards, self._publisher),
            entries=tuple([item.entry(scope, self._publisher) for item in self._items]),
        )
        kid = "" if self._signer is None else self._signer.key.kid
        content = hashlib.sha256(write_catalog(catalog) + kid.encode()).hexdigest()
        etag = f'"{content[:32]}"'
        if before is not None and before.etag == etag:
            return msgspec.structs.replace(before, made=now, revision=revision)
        modified = self._since if before is None else int(now)
        written = [self._finished(entry, modified) for entry in catalog.entries]
        catalog = msgspec.structs.replace(catalog, entries=tuple(written))
        return CardFile(write_catalog(catalog), etag, modified, now, revision)

    def _finished(self, entry: CatalogEntry, modified: int) -> CatalogEntry:
        """Return an entry with its time, and with a signature if the server has keys."""
        manifest = entry.trust_manifest
        if self._signer is not None and manifest is not None:
            manifest = self._signer.sign(manifest)
        time_of = datetime.fromtimestamp(modified, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return msgspec.structs.replace(entry, trust_manifest=manifest, updated_at=time_of)


class Unpublished:
    """Answers at the path of a catalog where none is published, and logs once how to."""

    def __init__(self, fallback: ASGIApp) -> None:
        self._fallback = fallback
        self._is_logged = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as where there is nothing."""
        if not self._is_logged:
            self._is_logged = True
            log.info(
                "somebody asked for %s, and no catalog is published: name the domain whose agents "
                "these are (publisher=, --publisher or PARLEY_PUBLISHER)",
                CATALOG_PATH,
            )
        await self._fallback(scope, receive, send)
