"""``Registry``: its index, crawler, search and interfaces, assembled as an app."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from uuid import uuid4

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.agent.agent import Agent
from parley.database.errors import StoreUnavailable
from parley.host.app import asgi
from parley.host.egress import read_egress
from parley.host.options import is_of_this_machine
from parley.host.store_urls import open_store
from parley.model.concurrency import Periodic
from parley.registry.app.publishing_routes import OperatorRoutes, PublishingRoutes
from parley.registry.app.routes import (
    RestOperation,
    RestRequest,
    RestRoutes,
    Rules,
    openapi_document,
    operation,
    operations_of,
)
from parley.registry.app.searching import PATH as AGENT_PATH
from parley.registry.app.searching import (
    EntryOperations,
    IndexRegistrar,
    RegistryItem,
    RegistryPage,
    SearchOperations,
    finding_agent,
)
from parley.registry.catalog.entries import CATALOG, CATALOG_PATH, CATALOG_PATHS, AirUrn
from parley.registry.federation.federated import Federated
from parley.registry.federation.upstream import Upstream
from parley.registry.health.prober import Heartbeats, Prober
from parley.registry.health.probing import AgentProbe
from parley.registry.health.settings import HealthSettings
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.urls import open_index
from parley.registry.ingest.addresses import (
    AUDIENCE,
    DnsNames,
    UnfitAddress,
    checked_address,
    is_this_machine,
)
from parley.registry.ingest.crawler import Crawler
from parley.registry.ingest.examiner import Examiner
from parley.registry.ingest.fetching import WebFetcher
from parley.registry.ingest.sites import site_address
from parley.registry.options import INDEX, RegistryKeywords, RegistryOptions
from parley.registry.publishing.callers import (
    CallerRates,
    OperatorDecisions,
    PublishingLimits,
    file_source,
)
from parley.registry.publishing.proofs import DomainProofs
from parley.registry.publishing.pushing import EntryPublishing
from parley.registry.records import Source, SourceKind, SourceState
from parley.registry.search.meaning import Meaning
from parley.registry.search.searcher import Searcher
from parley.registry.served.binding import CatalogBinding
from parley.registry.served.catalog import (
    RELATION,
    CatalogItem,
    CatalogPage,
    ManifestSigner,
    read_publication,
)
from parley.security.egress import Egress
from parley.security.limits.agent_limits import AgentLimits
from parley.security.limits.counters import LocalCounters, shared_by
from parley.security.limits.declaration import Rate, parse_limits
from parley.security.schemes.scheme import anonymous
from parley.security.signing.keys import SigningKeys
from parley.server.app import App, Settings
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.catalog_link import CatalogLink, LinkedPage
from parley.server.http.responses import NO_STORE, reply
from parley.store.task_store import TaskStore

# Background tasks of the registry: probes, heartbeats, and the removal of old withdrawn entries.

DAY_MS = 24 * 3600 * 1000
KEPT_DAYS = 90
"""The time for which a withdrawn entry is kept, with the versions of its card and the keys of its
pin.
"""

FOLLOW_SECONDS = 5.0
"""The longest interval between two reads of index changes, so that a search has few to read."""

REMOVED_PER_TRANSACTION = 200
PRUNE_SECONDS = 3600.0


class RegistryCare:
    """The background work of a registry. Start it after the index is open, and stop it before the
    index closes.
    """

    def __init__(
        self,
        index: RegistryIndex,
        rates: CallerRates,
        *,
        egress: Egress,
        settings: HealthSettings | None = None,
    ) -> None:
        settings = settings or HealthSettings()
        self.heartbeats = Heartbeats(index, rates, settings)
        self.prober = Prober(index, AgentProbe(egress, settings), settings)
        self._index = index
        self._follows = Periodic(
            "reading changes of entries",
            index.catch_up,
            FOLLOW_SECONDS,
            log=log,
            expected=StoreUnavailable,
        )
        self._prunes = Periodic(
            "removing withdrawn entries",
            self.prune,
            PRUNE_SECONDS,
            log=log,
            expected=StoreUnavailable,
        )

    async def start(self) -> None:
        """Start the background work. Idempotent."""
        await self.heartbeats.start()
        await self.prober.start()
        self._follows.start()
        self._prunes.start()

    async def stop(self) -> None:
        """Stop. Idempotent."""
        await self._prunes.stop()
        await self._follows.stop()
        await self.prober.stop()
        await self.heartbeats.stop()

    async def prune(self, at_once: int = REMOVED_PER_TRANSACTION) -> int:
        """Remove entries that were withdrawn long ago; return their number. Decisions of operators
        remain. Raises ``StoreUnavailable``.
        """
        removed = 0
        before = self._index.now() - KEPT_DAYS * DAY_MS
        while count := await self._index.forget(before, at_once):
            removed += count
        if removed:
            log.info("removed %d entries that were withdrawn long ago", removed)
        return removed


# Sources that an operator names, and the local addresses that they open to the crawler.


def source_of(text: str, fetcher: WebFetcher) -> Source:
    """Return the source that an operator names: the address of a catalog, or a site.

    ``acme.com`` and ``https://acme.com/`` are sites, whose catalogs are looked up; an address that
    ends with ``.json`` is a catalog. Raises ``ValueError``.
    """
    given = text.strip()
    try:
        if "://" in given and urlsplit(given).path.endswith(".json"):
            return Source(url=checked_address(given, plain=fetcher.plain), kind=SourceKind.CATALOG)
        return Source(url=site_address(given, fetcher), kind=SourceKind.SITE)
    except UnfitAddress as error:
        raise ValueError(str(error)) from None


def places_of_this_machine(sources: Iterable[str]) -> list[str]:
    """Return the hosts and ports of sources on this machine, for an egress policy.

    An operator who names such a source permits the crawler to read it.
    """
    found: dict[str, None] = {}
    for text in sources:
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname or "", parts.port
        except ValueError:
            continue
        if is_this_machine(host):
            port = port or (443 if parts.scheme == "https" else 80)
            shape = f"[{host}]" if ":" in host else host
            found[f"{shape}:{port}"] = None
    return list(found)


log = logging.getLogger("parley.registry")

NAMESPACE = "registry"
DRAIN_SECONDS = 5.0

FIRST_SECONDS = 3.0
"""The time for which a start waits for the first visits of new sources, in seconds."""

FIRST_POLL = 0.05
_DOWN = (SourceState.FAILED, SourceState.GONE)
MAX_SOURCES_READ = 1_000

OPENAPI_PATH = "/openapi.json"
READY_PATH = "/health/ready"


class Registry:
    """A registry. ``app`` is its ASGI app, which starts and stops it.

    ``index`` is the address of its storage: ``sqlite:///registry.db``, ``postgresql://...`` (for
    several processes at a time), ``memory:``. Its keywords are the fields of ``RegistryOptions``.

    Raises ``ValueError`` for an unsupported address or option.
    """

    def __init__(
        self, index: str | RegistryIndex = INDEX, **given: Unpack[RegistryKeywords]
    ) -> None:
        options = RegistryOptions(index=index, **given)  # type: ignore[arg-type]
        settings = options.settings or Settings()
        url, name, migrate, ingest = options.url, options.name, options.migrate, options.ingest
        named, private = list(options.sources), list(options.allow_private)
        is_here = is_of_this_machine(settings, url)
        policy = (options.egress or read_egress()).adding(private, option="allow_private")
        if is_here:
            policy = policy.adding(places_of_this_machine(named), option="sources")
        self.name = name
        self.index = open_index(index, migrate=migrate) if isinstance(index, str) else index
        known = url or options.address
        # Without a configured address, results have the address of the request.
        self.source = f"urn:uuid:{uuid4()}" if known is None else f"{known.rstrip('/')}/"
        self.names = DnsNames(options.nameservers)
        self.fetcher = WebFetcher(
            policy,
            limits=ingest,
            plain_http=private,
            lookup=self.names if self.names.are_named else None,
        )
        self.examiner = Examiner(self.fetcher)
        self.crawler = Crawler(self.index, self.examiner, self.fetcher, names=self.names)
        self._meaning = None
        if options.meaning:
            self._meaning = Meaning.load(self.index)
        self.searcher = Searcher(self.index, source=self.source, meaning=self._meaning)
        self.federated = Federated(
            self.searcher,
            [
                each if isinstance(each, Upstream) else Upstream(url=each)
                for each in options.upstreams
            ],
            index=self.index,
            source=self.source,
            egress=policy,
        )
        limits_of_publishing = options.publishing or PublishingLimits()
        rates = CallerRates(limits_of_publishing)
        self.proofs = DomainProofs(
            self.index,
            self.fetcher,
            self.names,
            registry=urlsplit(known or "").hostname or "localhost",
            limits=limits_of_publishing,
            rates=rates,
        )
        self.publishing = EntryPublishing(
            self.index, self.examiner, self.proofs, ingest=ingest, rates=rates
        )
        self.care = RegistryCare(
            self.index, rates, egress=self.fetcher.egress, settings=options.health
        )
        self.decisions = OperatorDecisions(
            self.index, plain=self.fetcher.plain, begin_due=self.crawler.begin_due
        )
        self._sources = [source_of(each, self.fetcher) for each in named]
        self._files = [file_source(each) for each in options.entries]
        self._shares: Periodic | None = None
        self._security = None if options.auth is None else options.auth.security
        self._rules = Rules(self._security, is_public=options.public_search, is_here=is_here)
        self.searching = SearchOperations(self.federated, self.searcher, source=self.source)
        store = open_store(
            tasks_url(index) if options.tasks is None else options.tasks, None, migrate=migrate
        )
        self._agent = finding_agent(name, self.searching, self._running)
        self._rest = rest = operations_of(
            self.searching,
            EntryOperations(self.index),
            PublishingRoutes(self.publishing, self.proofs, self.care.heartbeats),
            OperatorRoutes(self.decisions, self.publishing),
            RegistryPage(name, self.searching),
            self,
        )
        counted = parse_limits(options.limits, operations=[each.name for each in rest])
        publication = read_publication(options.publisher)
        keys = SigningKeys.load(options.signing_keys)
        self.app: App = asgi(
            {AGENT_PATH: self._agent},
            store=store,
            url=url,
            auth=self._security | anonymous
            if self._security is not None and options.public_search
            else self._security,
            settings=settings,
            drain=DRAIN_SECONDS,
            signing_keys=keys,
            access_log=options.access_log,
            otlp=options.otlp,
            trace_content=options.trace_content,
            limits=[each.text for each in counted if not _is_on(each, rest)],
            publisher="" if publication is None else publication.publisher,
            bindings=[
                CatalogBinding(registrar=IndexRegistrar(self.publishing, self.care.heartbeats))
            ],
        )
        routes = RestRoutes(
            rest,
            lambda: self.app,
            self._rules,
            catalog_bytes=self.publishing.limits.document_bytes,
            limits=self._limits(counted, store),
        )
        for path in routes.paths:
            self.app.serve_at(path, routes, restrict="docs" if path == OPENAPI_PATH else "")
        for path in routes.roots:
            self.app.serve_at(path, routes, below=True)
        if publication is not None:
            self._publish(publication.publisher, keys, settings, url, routes)
        self.app.serve_at(READY_PATH, _Ready(self.app.handler_at(READY_PATH), self.index))

    # -- lifecycle ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def _running(self, agent: Agent) -> AsyncIterator[Registry]:
        async with AsyncExitStack() as stack:
            await self.index.open()
            stack.push_async_callback(self.index.close)
            stack.push_async_callback(self.fetcher.close)
            stack.push_async_callback(self.names.close)
            stack.push_async_callback(self.federated.aclose)
            if self._shares is not None:
                stack.push_async_callback(self._shares.stop)
                self._shares.start()
            if self._meaning is not None:
                stack.push_async_callback(self._meaning.stop)
                await self._meaning.start()
            is_new = await self._add_sources()
            stack.push_async_callback(self.proofs.stop)
            await self.proofs.start()
            stack.push_async_callback(self.crawler.stop)
            await self.crawler.start()
            if is_new:
                await self._first_visits()
            stack.push_async_callback(self.care.stop)
            await self.care.start()
            log.info("the registry's index is %s", self.index.name)
            yield self

    async def _add_sources(self) -> bool:
        """Add the configured sources; return whether at least one is new.

        Files are read again, because they may have changed. A source that a site named earlier
        becomes the operator's source.
        """
        named = [*self._sources, *self._files]
        added = await self.index.add_sources(named)
        if added < len(named) or self._files:
            for each in self._sources:
                before = await self.index.source(each.url)
                if before is not None and before.found_by:
                    kept = {n: v for n, v in before.settings.items() if n == AUDIENCE}
                    await self.index.change_source(msgspec.structs.replace(each, settings=kept))
                elif (
                    before is not None and before.state in _DOWN
                ):  # try again: the site may be reachable again
                    failures = before.failures if before.entries else 0
                    due = msgspec.structs.replace(before, due_at=0, failures=failures)
                    await self.index.change_source(due)
            for each in self._files:
                before = await self.index.source(each.url)
                if before is not None and before.fetched_at is not None:
                    due = msgspec.structs.replace(before, due_at=0, settings=each.settings)
                    await self.index.end_visit(due)
        return added > 0

    async def _first_visits(self) -> None:
        """Wait a moment for the configured sources, so that the first search finds
        their entries.
        """
        named = {each.url for each in (*self._sources, *self._files)}
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SECONDS):
                while any(  # noqa: ASYNC110 - other processes may visit them
                    each.state is SourceState.NEW and (each.url in named or each.found_by in named)
                    for each in await self.index.sources(limit=MAX_SOURCES_READ)
                    if each.fetched_at is None
                ):
                    await asyncio.sleep(FIRST_POLL)

    # -- assembly ----------------------------------------------------------------------------------

    def _limits(self, counted: Iterable[Any], store: TaskStore) -> AgentLimits | None:
        rates = [each for each in counted if isinstance(each, Rate)]
        if not rates:
            return None
        counters = LocalCounters(store.now)
        if store.is_shared:
            self._shares = shared_by(counters, store.replicas)
        return AgentLimits(
            NAMESPACE,
            server=rates,
            own=(),
            counters=counters,
            daily=counters,
            streams=Counter(),
            usage=None,
            now=store.now,
        )

    @operation("GET", OPENAPI_PATH, is_documented=False, max_age=300)
    async def show_document(self, request: RestRequest) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return openapi_document(
            self._rest,
            title=self.name,
            base=request.base,
            security=self._security,
            public=self._rules.is_public,
        )

    def _publish(
        self,
        publisher: str,
        keys: SigningKeys | None,
        settings: Settings,
        url: str | None,
        routes: RestRoutes,
    ) -> None:
        """Serve the registry's own catalog: the registry itself, and its agent."""

        def advertised(prefix: str) -> AdvertisedInterfaces:
            return AdvertisedInterfaces(
                prefix, url=url, trust_proxy=settings.trust_proxy, hosts=self.app.hosts
            )

        def card() -> Any:
            return self._agent.describe().card_at(())

        items = [
            RegistryItem(
                str(AirUrn(publisher, (NAMESPACE,), "search")), card, advertised(""), name=self.name
            ),
            CatalogItem(
                str(AirUrn(publisher, (NAMESPACE,), "agent")), card, advertised(AGENT_PATH)
            ),
        ]
        signer = None if keys is None else ManifestSigner(keys, url)
        page = CatalogPage(
            items, advertised(""), publisher=publisher, settings=settings, signer=signer
        )
        for path in CATALOG_PATHS:
            self.app.serve_at(path, page, restrict="card")
        link = CatalogLink(CATALOG_PATH, RELATION, CATALOG, url)
        self.app.serve_at("/", LinkedPage(routes, link, "/"))


class _Ready:
    """The readiness check: of the server first, then of the index."""

    def __init__(self, inner: ASGIApp, index: RegistryIndex) -> None:
        self._inner = inner
        self._index = index

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_unavailable = False

        async def checked(message: Message) -> None:
            nonlocal is_unavailable
            if message["type"] == "http.response.start" and message["status"] == 200:
                try:
                    await self._index.sources(limit=1)
                except StoreUnavailable as error:
                    log.warning("the registry is not ready: %s", error)
                    is_unavailable = True
            if not is_unavailable:
                await send(message)

        await self._inner(scope, receive, checked)
        if is_unavailable:
            body = {"status": "unavailable", "reason": "the index cannot be reached"}
            await reply(send, 503, msgspec.json.encode(body), [NO_STORE])


def tasks_url(index: str | RegistryIndex) -> str:
    """Return the address of the registry's tasks and API keys, in the same database as
    its index.
    """
    if not isinstance(index, str) or index in ("memory:", "memory://"):
        return "memory:"
    if index.startswith("sqlite:///"):
        path = Path(index.removeprefix("sqlite:///"))
        return f"sqlite:///{path.with_name(f'{path.stem}-tasks{path.suffix}').as_posix()}"
    # Without a schema in the URL, index and tasks use different default schemas; an explicit schema
    # can hold only one of them.
    parts = urlsplit(index)
    query = [
        (name, f"{value}_tasks" if name == "schema" else value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    return urlunsplit(parts._replace(query=urlencode(query)))


def _is_on(limit: Any, operations: Iterable[RestOperation]) -> bool:
    """Return whether a limit names REST operations, which the agent does not have."""
    applies = getattr(limit, "applies", None)
    named: tuple[str, ...] = () if applies is None else applies.operations
    return bool({each.name for each in operations} & set(named))
