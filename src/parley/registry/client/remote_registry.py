"""``RemoteRegistry``: searches a registry or catalog by any reference; ``parley.find`` uses it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    runtime_checkable,
)

import msgspec

from parley.client.auth.authorizer import Authorizer, certificate_in, credentials_of
from parley.client.auth.credentials import Credential, Credentials
from parley.client.bindings.http import HttpTransport, Tls, redacted
from parley.client.bindings.request_auth import split_headers
from parley.client.connection import has_certificate
from parley.client.errors import ClientError, ConnectionClosed
from parley.client.origin import Origin
from parley.client.retry import Retry
from parley.client.sync import run_in_thread
from parley.registry.catalog.entries import A2A_CARD_TYPES, REGISTRY_TYPES, CatalogEntry, media_type
from parley.registry.catalog.reading import InvalidEntry, read_entry
from parley.registry.catalog.searching import (
    MAX_FACETS,
    MAX_FILTERS,
    MAX_PAGE,
    MAX_QUERY_TEXT,
    BrowseAnswer,
    ExploreRequest,
    Facet,
    FacetRequest,
    FederationMode,
    ListedResult,
    ListRequest,
    QueryModel,
    RegistryReferral,
    SearchAnswer,
    SearchRequest,
    SearchResponse,
    clamped,
    in_span,
)
from parley.registry.client.found import FoundAgent
from parley.registry.client.places import (
    NotARegistry,
    ParsedReference,
    ReferenceKind,
    RegistryReference,
    RegistryRefused,
    base_of,
    catalogs_of,
    parse_reference,
)
from parley.registry.client.rest import RestRegistry
from parley.security.egress import Egress
from parley.security.networks import is_loopback

if TYPE_CHECKING:
    from parley.registry.client.local_catalog import LocalCatalog

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_LIMIT = 1_000
_MAX_PAGES = 20

FilterValues = str | Sequence[str]


@runtime_checkable
class SearchesAgents(Protocol):
    """A private API that replaces a registry: an object of the caller."""

    async def search(self, request: SearchRequest) -> SearchResponse:
        """Return the entries that match a request."""
        ...


class RemoteRegistry:
    """A registry, by any reference that ``find`` accepts. An async context manager; or close it.

    The first call locates it: an address is called directly, a domain or catalog leads to the
    registry that it names, and a catalog without a registry is searched in this process, by words.
    """

    def __init__(
        self,
        registry: RegistryReference | SearchesAgents | None = None,
        *,
        auth: Credential | Sequence[Credential] | Literal[False] | None = None,
        headers: Mapping[str, str] | None = None,
        bearer: str | None = None,
        api_key: str | None = None,
        timeout: float | None = 30.0,
        retries: int = 2,
        insecure: bool = False,
        trust_origins: Sequence[str] = (),
        allow_private: bool | Iterable[str] = False,
        tls: ssl.SSLContext | Tls | None = None,
        proxy: str | None = None,
        egress: Egress | None = None,
        http: HttpTransport | None = None,
    ) -> None:
        self._own: SearchesAgents | None = None
        if isinstance(registry, SearchesAgents):
            self._own, registry = registry, {"entries": []}
        self._place = parse_reference(registry)
        given = credentials_of(auth)
        if given and (bearer or api_key):
            raise ValueError("give auth, or bearer and api_key, but not both")
        if http is not None and any((tls, proxy, egress)):
            raise ValueError("http has its own TLS settings, proxy and egress policy")
        own_headers, _ = split_headers(headers)
        url, credentials = Credentials.from_reference(
            self._place.url,
            headers=own_headers,
            bearer=bearer,
            api_key=api_key,
            trust_origins=trust_origins,
            insecure=insecure or (http is not None and (http.insecure or http.is_local)),
            others="what auth has" if given else "the client certificate" * has_certificate(tls),
        )
        self._place = self._place._replace(url=str(url))
        certificate = certificate_in(given)
        if certificate is not None:
            ca = tls.ca if isinstance(tls, Tls) else None
            tls = Tls(ca=ca, cert=certificate.cert, key=certificate.key)
        self._places = allow_private if isinstance(allow_private, bool) else tuple(allow_private)
        Egress.allowing(self._places)  # rejects invalid hosts and networks
        self._timeout = timeout
        self._retry = Retry(calls=retries, streams=0)
        self._owns_http = http is None
        self._http = http or HttpTransport(insecure=insecure, tls=tls, proxy=proxy, egress=egress)
        self._guarded: HttpTransport | None = None
        self._public = credentials.public
        self._auth = Authorizer(
            credentials, given, http=self._http, address=redacted(self._place.url)
        )
        if http is None:
            self._http.certificate_for = self._auth.may_see_certificate
        self._opening = asyncio.Lock()
        self._backend: RestRegistry | LocalCatalog | None = None
        self._has_answered = False
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        self._closed = True
        await self._auth.aclose()
        if self._backend is not None:
            await self._backend.aclose()
        if self._guarded is not None:
            await self._guarded.close()
        if self._owns_http:
            await self._http.close()

    @property
    def name(self) -> str:
        """The name of the registry, without credentials: an address, a file, or ``the given
        catalog``.
        """
        if isinstance(self._backend, RestRegistry):
            return redacted(self._backend.base)
        if self._backend is not None:
            return self._backend.source
        return redacted(self._place.url) or str(self._place.path or "the given catalog")

    # -- searches ------------------------------------------------------------------------------

    async def find(
        self,
        need: str,
        *,
        filter: Mapping[str, FilterValues] | None = None,
        limit: int = 10,
        federation: str = FederationMode.AUTO,
    ) -> list[FoundAgent]:
        """Return agents that meet a need, the best first; see ``parley.find``."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
            raise ValueError(f"limit is a number from 1 to {MAX_LIMIT}, not {limit!r}")
        query = query_of(need, filter)
        has_type = "type" in query.filter
        if not has_type:
            query = QueryModel(text=query.text, filter={**query.filter, "type": A2A_CARD_TYPES})
        found: dict[str, FoundAgent] = {}
        async for each in self._pages(query, limit, mode_of(federation)):
            kind = media_type(each.entry.type)
            if has_type or kind in A2A_CARD_TYPES:
                found.setdefault(each.identifier, each)
            if len(found) >= limit:
                break
        return list(found.values())

    async def _pages(
        self, query: QueryModel, limit: int, mode: FederationMode
    ) -> AsyncIterator[FoundAgent]:
        token, seen = "", set[str]()
        for _ in range(_MAX_PAGES):
            request = SearchRequest(
                query=query, federation=mode, page_size=min(limit, MAX_PAGE), page_token=token
            )
            answer = await self.search(request)
            for each in answer.results:
                yield self.found(each)
            token = answer.page_token
            if not token or token in seen:
                return
            seen.add(token)

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """Return one page of entries, ranked by relevance."""
        return await in_span("client", request, self._search(request))

    async def _search(self, request: SearchRequest) -> SearchAnswer:
        if self._own is not None:
            return _answer_of(await self._own.search(request))
        return await self._ask(lambda backend: backend.search(request), is_search=True)

    async def referrals(self, need: str = "registry") -> tuple[RegistryReferral, ...]:
        """Return the other registries to which this registry refers."""
        request = SearchRequest(
            query=QueryModel(text=need), federation=FederationMode.REFERRALS, page_size=1
        )
        return (await self.search(request)).referrals

    async def explore(
        self,
        need: str = "",
        *,
        facets: Sequence[str | FacetRequest] = ("type",),
        filter: Mapping[str, FilterValues] | None = None,
    ) -> dict[str, Facet]:
        """Return the values of fields among the matching entries, with their counts.

        A registry may not support it: then ``RegistryRefused`` has the status 501.
        """
        if isinstance(facets, str) or not 1 <= len(facets) <= MAX_FACETS:
            raise ValueError(f"facets must be a list of 1 to {MAX_FACETS} field paths")
        asked = tuple(FacetRequest(field=f) if isinstance(f, str) else f for f in facets)
        query = query_of(need, filter, needs_text=False)
        request = ExploreRequest(query=query, facets=asked)
        return await self._ask(lambda backend: backend.explore(request))

    async def browse(
        self, *, filter: str = "", order_by: str = "", page_size: int = 20, page_token: str = ""
    ) -> BrowseAnswer:
        """Return one page of entries in an order, by a filter expression (ARD appendix A)."""
        if not 1 <= page_size <= MAX_PAGE:
            raise ValueError(f"page_size is a number from 1 to {MAX_PAGE}, not {page_size!r}")
        request = ListRequest(
            filter=filter, order_by=order_by, page_size=page_size, page_token=page_token
        )
        return await self._ask(lambda backend: backend.browse(request))

    async def entry(self, identifier: str) -> CatalogEntry:
        """Return the entry of an identifier. Raises ``AgentNotFound``."""
        return (await self._entry(identifier))[0]

    async def agent(self, identifier: str) -> FoundAgent:
        """Return the agent of an identifier, for ``parley.connect``. Raises ``AgentNotFound``."""
        entry, details = await self._entry(identifier)
        found = self.found(ListedResult(entry=entry, document={}, source=self.name))
        return msgspec.structs.replace(found, details=details)

    async def _entry(self, identifier: str) -> tuple[CatalogEntry, Mapping[str, Any]]:
        if not identifier.strip():
            raise ValueError("an identifier is a text such as urn:air:example.com:agent:fx")
        return await self._ask(lambda backend: backend.entry(identifier.strip()))

    async def send(
        self, method: str, route: str, value: Any = None, *, safe: bool = False
    ) -> dict[str, Any]:
        """Call a route that only Parley's registries have, such as publishing.

        Raises ``RegistryRefused``, and ``NotARegistry`` for a catalog.
        """
        backend = await self._open()
        if not isinstance(backend, RestRegistry):
            raise NotARegistry(f"{self.name} is a catalog, not a registry: it accepts no requests")
        return await backend.send(method, route, value, safe=safe)

    def found(self, result: ListedResult) -> FoundAgent:
        """Return a result as an agent that can be called."""
        return FoundAgent(
            entry=result.entry,
            score=clamped(result.score),
            source=result.source or self.name,
            places=() if isinstance(self._places, bool) else self._places,
            is_near=self._answers_here,
            is_own=self._places is True or self._is_own,
        )

    # -- locating the registry --------------------------------------------------------------------

    @property
    def _is_own(self) -> bool:
        """Return whether the caller supplied the data itself: an object, a file or a catalog."""
        if self._own is not None or self._http.is_local:
            return True
        return not self._place.url and not isinstance(self._backend, RestRegistry)

    @property
    def _answers_here(self) -> bool:
        """Return whether the answering registry is on this machine, whoever named it."""
        if isinstance(self._backend, RestRegistry):
            return is_loopback(self._backend.origin.host)
        return bool(self._place.url) and is_loopback(Origin.of(self._place.url).host)

    @property
    def _is_named_here(self) -> bool:
        """Return whether the caller, or a catalog on this machine, names the registry."""
        if not self._place.url or self._http.is_local:
            return True
        return is_loopback(Origin.of(self._place.url).host)

    async def _ask(
        self,
        call: Callable[[RestRegistry | LocalCatalog], Awaitable[T]],
        *,
        is_search: bool = False,
    ) -> T:
        """Call the registry; or the registry to which its address leads."""
        if self._own is not None:
            raise NotARegistry("this registry is an object that supports search only")
        backend = await self._open()
        try:
            answer = await call(backend)
        except (RegistryRefused, NotARegistry) as error:
            other = await self._elsewhere(backend, error, is_search=is_search)
            return await call(other)
        self._has_answered = True
        return answer

    async def _open(self) -> RestRegistry | LocalCatalog:
        if self._closed:
            raise ConnectionClosed("this registry was closed; open a new one")
        async with self._opening:
            if self._backend is None:
                self._backend = await self._find_backend(self._place)
            return self._backend

    async def _find_backend(self, place: ParsedReference) -> RestRegistry | LocalCatalog:
        match place.kind:
            case ReferenceKind.FILE:
                from parley.registry.client.local_catalog import read_file

                assert place.path is not None
                body = await asyncio.to_thread(read_file, place.path)
                return self._from_own(body, str(place.path))
            case ReferenceKind.JSON:
                return self._from_own(place.document, "the given catalog")
            case ReferenceKind.ADDRESS:
                self._bind(place.url)
                return self._rest_at(place.url, self._http)
        self._bind(place.url)
        if place.kind is ReferenceKind.CATALOG:
            return await self._from_web(place.url)
        try:
            return await self._from_well_known(place.url)
        except (RegistryRefused, NotARegistry):
            return self._rest_at(place.url, self._http)

    async def _elsewhere(
        self,
        backend: RestRegistry | LocalCatalog,
        error: RegistryRefused | NotARegistry,
        *,
        is_search: bool,
    ) -> RestRegistry | LocalCatalog:
        """Return the registry or catalog behind an address that is not a registry itself.

        Raises ``error`` if there is none.
        """
        is_bare = self._place.kind is ReferenceKind.ADDRESS and self._place.url.count("/") == 3
        answers = isinstance(error, RegistryRefused) and error.status not in (404, 405, 501)
        if not is_bare or answers or self._has_answered or not isinstance(backend, RestRegistry):
            raise error
        if not is_search and await self._searches(backend):  # a registry that lacks only this route
            self._has_answered = True
            raise error
        try:
            found = await self._from_well_known(self._place.url)
        except ClientError:
            raise error from None
        self._backend = found
        return found

    async def _searches(self, backend: RestRegistry) -> bool:
        """Return whether an address answers searches: every registry does (ARD §5.3)."""
        request = SearchRequest(
            query=QueryModel(text="registry"), federation=FederationMode.NONE, page_size=1
        )
        try:
            await backend.search(request)
        except (RegistryRefused, NotARegistry):
            return False
        return True

    def _from_own(self, document: Any, where: str) -> RestRegistry | LocalCatalog:
        """Return the registry or catalog of a document from the caller, who vouches for its
        addresses.
        """
        from parley.registry.client.local_catalog import LocalCatalog, read_entries

        entries = read_entries(document, where)
        if entries and all(entry.type in REGISTRY_TYPES for entry in entries):
            base = _base(entries[0])
            self._bind(base)
            return self._rest_at(base, self._http)
        return LocalCatalog(entries, where)

    async def _from_well_known(self, url: str) -> RestRegistry | LocalCatalog:
        """Return the registry or catalog of a host's well-known catalog: of ARD 0.91,
        else of 0.9.
        """
        first, second = catalogs_of(url)
        try:
            return await self._from_web(first)
        except (RegistryRefused, NotARegistry) as error:
            with suppress(ClientError):
                return await self._from_web(second)
            raise error

    async def _from_web(self, url: str) -> RestRegistry | LocalCatalog:
        """Return the registry that a catalog names, or the catalog itself."""
        from parley.registry.client.local_catalog import MAX_FILE, LocalCatalog, read_entries

        def attach(target: str) -> dict[str, str]:
            return self._auth.credentials.card_headers(target, challenged=True)

        headers = {"Accept": "application/ai-catalog+json, application/json", **self._public}
        reply = await self._http.get(
            url, headers, attach=attach, timeout=self._timeout, limit=MAX_FILE
        )
        where = redacted(reply.url)
        if reply.status != 200:
            raise RegistryRefused(
                f"{where} answered {reply.status}: no catalog there names a registry",
                status=reply.status,
            )
        entries = read_entries(reply.body, where)
        named = next((entry for entry in entries if entry.type in REGISTRY_TYPES), None)
        if named is None:
            return LocalCatalog(entries, where)
        base = _base(named)
        logger.info("the catalog %s names the registry %s", where, redacted(base))
        return self._rest_at(base, self._transport_for(base, url))

    def _transport_for(self, base: str, catalog: str) -> HttpTransport:
        """Return the transport for a registry that a catalog names: guarded, if its
        origin differs.
        """
        own = Origin.of(catalog)
        if own.covers(Origin.of(base)) or self._is_named_here:
            return self._http
        if self._guarded is None:
            policy = Egress().adding(self._places, option="allow_private")
            self._guarded = self._http.guarded(policy)
        return self._guarded

    def _bind(self, url: str) -> None:
        self._auth.for_origin(Origin.of(url))

    def _rest_at(self, base: str, http: HttpTransport) -> RestRegistry:
        return RestRegistry(
            base, http, self._auth, headers=self._public, timeout=self._timeout, retry=self._retry
        )


def query_of(
    need: str, filter: Mapping[str, FilterValues] | None, *, needs_text: bool = True
) -> QueryModel:
    """Return a query. Raises ``ValueError`` and ``TypeError`` for invalid arguments."""
    if not isinstance(need, str):
        raise TypeError(f"a need must be a text such as 'currency conversion', not {need!r:.100}")
    text = need.strip()
    if needs_text and not text:
        raise ValueError("say what is needed in words, such as 'currency conversion'")
    if len(text) > MAX_QUERY_TEXT:
        raise ValueError(f"a need has at most {MAX_QUERY_TEXT} characters, not {len(text)}")
    if filter is not None and not isinstance(filter, Mapping):
        raise TypeError("filter must be a mapping of field paths, such as {'tags': ['finance']}")
    if len(filter or ()) > MAX_FILTERS:
        raise ValueError(f"a filter has at most {MAX_FILTERS} field paths")
    read: dict[str, tuple[str, ...]] = {}
    for path, values in (filter or {}).items():
        listed = (values,) if isinstance(values, str) else tuple(values)
        if not path or not listed or not all(isinstance(each, str) for each in listed):
            raise ValueError(
                f"the filter {path!r} must have a text or a list of texts, such as "
                "{'card.skills.tags': ['finance']}"
            )
        read[path] = listed
    return QueryModel(text=text, filter=read)


def mode_of(federation: str) -> FederationMode:
    """Return a federation mode. Raises ``ValueError``."""
    try:
        return FederationMode(federation)
    except ValueError:
        known = ", ".join(mode.value for mode in FederationMode)
        raise ValueError(f"federation must be one of {known}, not {federation!r:.60}") from None


def _base(entry: CatalogEntry) -> str:
    if not entry.url:
        raise NotARegistry(f"the entry {entry.identifier[:200]} of a registry has no address")
    try:
        return base_of(entry.url)
    except ValueError as error:
        raise NotARegistry(str(error)) from None


def _answer_of(response: SearchResponse | SearchAnswer) -> SearchAnswer:
    if isinstance(response, SearchAnswer):
        return response
    results: list[ListedResult] = []
    for each in response.results:
        try:
            entry = read_entry(each.entry)
        except InvalidEntry as error:
            raise NotARegistry(f"the registry's object returned no entry: {error}") from None
        results.append(
            ListedResult(entry=entry, document=each.entry, score=each.score, source=each.source)
        )
    return SearchAnswer(
        results=tuple(results), referrals=response.referrals, page_token=response.page_token
    )


class RemoteRegistryOptions(TypedDict, total=False):
    """The options of ``RemoteRegistry``, also accepted by ``find``."""

    auth: Credential | Sequence[Credential] | Literal[False] | None
    headers: Mapping[str, str] | None
    bearer: str | None
    api_key: str | None
    timeout: float | None
    retries: int
    insecure: bool
    trust_origins: Sequence[str]
    allow_private: bool | Iterable[str]
    tls: ssl.SSLContext | Tls | None
    proxy: str | None
    egress: Egress | None
    http: HttpTransport | None


async def find(
    need: str,
    *,
    registry: RegistryReference | SearchesAgents | None = None,
    filter: Mapping[str, FilterValues] | None = None,
    limit: int = 10,
    federation: str = "auto",
    **options: Unpack[RemoteRegistryOptions],
) -> list[FoundAgent]:
    """Return agents that meet a need, the best first: ``parley.find("currency conversion")``.

    Each can be called: ``async with parley.connect(found[0]) as agent: ...``. Texts of results are
    untrusted, and their order says nothing about trust.

    ``registry`` is the address of a registry, a domain or the address of a catalog that names a
    registry, a catalog file (``"agents.json"``), a catalog as JSON, or an object with ``search``. A
    catalog without a registry is searched in this process, by words. Without ``registry`` it is
    ``PARLEY_REGISTRY``, which may be any of the first five; there is no other default.

    ``filter`` maps field paths to accepted values, such as ``{"tags": ["finance"], "card.bindings":
    "GRPC"}``; without ``type`` in it, only A2A agents are found. ``federation`` says whether the
    registry asks other registries (``auto``), names them (``referrals``) or neither (``none``).

    ``auth``, ``headers``, ``bearer`` and ``api_key`` are for the registry, and go to its origin and
    ``trust_origins`` only; found agents get none of them. A found agent must have a public address,
    or an address that ``allow_private`` permits (hosts and networks, or ``True``). Agents of a
    registry on this machine may be on it too, agents in the caller's own catalog anywhere. The
    other options are options of ``connect``.

    Raises ``NoRegistry`` (a ``ValueError``), ``NotARegistry``, ``RegistryRefused``,
    ``AuthenticationRequired``, and the errors of the network, which are ``ClientError``.
    """
    async with RemoteRegistry(registry, **options) as asked:
        return await asked.find(need, filter=filter, limit=limit, federation=federation)


def find_sync(need: str, **options: Any) -> list[FoundAgent]:
    """Return agents that meet a need, without async: the options are the options of ``find``."""
    return run_in_thread(lambda: find(need, **options))
