"""The REST client of one registry (ARD §5.3): sends requests, and reads responses within limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from parley.client.auth.authorizer import Authorizer
from parley.client.bindings.http import REDIRECTS, HttpTransport, Reply, redacted
from parley.client.bindings.request_auth import Refusal, refusal_in
from parley.client.errors import AuthenticationRequired, UnexpectedStatus
from parley.client.origin import Origin
from parley.client.retry import TRANSIENT_STATUSES, Retry, repeat
from parley.model.backoff import seconds_of
from parley.observe import tracing
from parley.registry.catalog.entries import MAX_URN, CatalogEntry
from parley.registry.catalog.reading import RejectedEntry, write_entry
from parley.registry.catalog.searching import (
    MAX_PAGE,
    BrowseAnswer,
    ExploreRequest,
    Facet,
    FederationMode,
    InvalidAnswer,
    ListedResult,
    ListRequest,
    QueryModel,
    SearchAnswer,
    SearchRequest,
    read_error,
    read_explore,
    read_list,
    read_one,
    read_search,
    write_explore,
    write_search,
)
from parley.registry.client.places import AgentNotFound, NotARegistry, RegistryRefused, base_of

T = TypeVar("T")

MAX_ANSWER = 8 * 1024 * 1024
"""The size limit of a response in bytes: a hundred entries, some with a card inside."""

MAX_COMPLETED = 20
"""The number of partial results of a response (identifiers only) completed by further requests."""

_NO_ROUTE = frozenset({404, 405, 501})


class RestRegistry:
    """A registry at a base address. It does not own its connections.

    ``headers`` go with every request, ``auth`` supplies credentials, and a publication is never
    sent twice. ``limit`` is the size limit of a response in bytes.
    """

    def __init__(
        self,
        base: str,
        http: HttpTransport,
        auth: Authorizer,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = 30.0,
        retry: Retry | None = None,
        limit: int = MAX_ANSWER,
    ) -> None:
        self.base = base
        self.origin = Origin.of(base)
        self._http = http
        self._auth = auth
        self._headers = dict(headers or {})
        self._timeout = timeout
        self._retry = retry or Retry(calls=2, streams=0)
        self._limit = limit
        self._got: dict[str, str] = {}

    async def aclose(self) -> None:
        """Do nothing: the connections belong to the caller."""

    async def search(
        self, request: SearchRequest, *, headers: Mapping[str, str] | None = None
    ) -> SearchAnswer:
        """Return entries ranked by relevance (``POST /search``)."""
        reply = await self._call("POST", "search", write_search(request), headers)
        answer = self._read(lambda: read_search(reply.body, max_results=request.page_size))
        if any(each.is_partial for each in answer.results):
            answer = await self._completed(answer)
        return answer

    async def _completed(self, answer: SearchAnswer) -> SearchAnswer:
        """Return a response whose partial results are completed, by one request for each."""
        left = [each for each in answer.results if each.is_partial][MAX_COMPLETED:]
        results, rejected = [], list(answer.rejected)
        for each in answer.results:
            found = each if not each.is_partial or each in left else await self._complete(each)
            if found is not None and not found.is_partial:
                results.append(found)
            else:
                words = "it has only an identifier, and its registry does not have the rest"
                rejected.append(
                    RejectedEntry(identifier=each.entry.identifier[:MAX_URN], reason=words)
                )
        return msgspec.structs.replace(answer, results=tuple(results), rejected=tuple(rejected))

    async def _complete(self, result: ListedResult) -> ListedResult | None:
        """Return a result with its entry; ``None`` if this registry does not have it."""
        try:
            is_here = not result.source or base_of(result.source) == self.base
            if not is_here:
                return None
            reply = await self._call("GET", f"agents/{quote(result.entry.identifier, safe='')}")
            entry, _ = read_one(reply.body)
        except (ValueError, RegistryRefused):
            return None
        if entry.identifier != result.entry.identifier:
            return None
        return msgspec.structs.replace(
            result, entry=entry, document=write_entry(entry), is_partial=False
        )

    async def explore(self, request: ExploreRequest) -> dict[str, Facet]:
        """Return the values of fields with their counts (``POST /explore``)."""
        reply = await self._call("POST", "explore", write_explore(request))
        return self._read(lambda: read_explore(reply.body))

    async def browse(self, request: ListRequest) -> BrowseAnswer:
        """Return entries in an order (``GET /agents``)."""
        given = {
            "filter": request.filter,
            "orderBy": request.order_by,
            "pageSize": str(request.page_size),
            "pageToken": request.page_token,
        }
        query = urlencode({name: value for name, value in given.items() if value})
        reply = await self._call("GET", f"agents?{query}")
        return self._read(lambda: read_list(reply.body, max_items=request.page_size))

    async def entry(self, identifier: str) -> tuple[CatalogEntry, Mapping[str, Any]]:
        """Return the entry of an identifier, and the registry's details.

        Raises ``AgentNotFound``.

        Registries of ARD 0.9 have no route for it: they are searched with a filter.
        """
        try:
            reply = await self._call("GET", f"agents/{quote(identifier, safe='')}")
            found, details = read_one(reply.body)
            if found.identifier.casefold() == identifier.casefold():
                return found, details
        except InvalidAnswer:
            pass
        except RegistryRefused as error:
            if error.status not in (*_NO_ROUTE, 400):
                raise
        return await self._searched(identifier), {}

    async def _searched(self, identifier: str) -> CatalogEntry:
        words = identifier.rpartition(":")[2].replace("-", " ").replace("_", " ") or identifier
        for filters in ({"identifier": (identifier,)}, {}):
            request = SearchRequest(
                query=QueryModel(text=words, filter=filters),
                federation=FederationMode.NONE,
                page_size=MAX_PAGE if not filters else 10,
            )
            try:
                answer = await self.search(request)
            except RegistryRefused as error:
                if error.status == 400 and filters:  # the registry does not filter by this field
                    continue
                raise
            for each in answer.results:
                if each.entry.identifier.casefold() == identifier.casefold():
                    return each.entry
        raise AgentNotFound(f"{redacted(self.base)} has no entry {identifier[:200]!r}")

    async def send(
        self, method: str, route: str, value: Any = None, *, safe: bool = False
    ) -> dict[str, Any]:
        """Send a request to one of Parley's own routes, and return the response object.

        ``safe``: it may be repeated. Raises ``RegistryRefused`` and ``ClientError``.
        """
        body = None if value is None else msgspec.json.encode(value)
        reply = await self._call(method, route, body, safe=safe)
        if not reply.body:
            return {}
        try:
            found = msgspec.json.decode(reply.body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise NotARegistry(f"{redacted(reply.url)} answered without a JSON object")
        return found

    async def _call(
        self,
        method: str,
        route: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        safe: bool = True,
    ) -> Reply:
        url = self.base + route

        async def attempt() -> Reply:
            reply = await self._send(method, url, body, headers)
            if reply.status in TRANSIENT_STATUSES:
                raise self._refused(reply)
            return reply

        try:
            reply = await repeat(
                attempt, self._retry, safe=safe, name=f"the registry at {redacted(self.base)}"
            )
        except _Transient as error:
            raise error.refusal from None
        if reply.status >= 400:
            raise self._refused(reply).refusal
        if reply.status >= 300:
            raise NotARegistry(
                f"{redacted(url)} redirects ({reply.status}); redirects of registries are not "
                "followed: give the final address"
            )
        return reply

    async def _send(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str] | None
    ) -> Reply:
        reply = await self._send_once(method, url, body, headers)
        if reply.status not in (401, 403):
            return reply
        refusal = refusal_in(reply.status, reply.headers)
        if reply.status == 401:
            found = await self._auth.card_parameters(refusal, url)
            if found and found != self._got:
                self._got = found
                reply = await self._send_once(method, url, body, headers)
        if reply.status in (401, 403):
            raise self._unauthenticated(reply, refusal)
        return reply

    async def _send_once(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str] | None
    ) -> Reply:
        own = self._auth.credentials.card_headers(url, challenged=True)
        whole = {
            "Accept": "application/json",
            **tracing.position().headers,
            **self._headers,
            **own,
            **self._got,
            **(headers or {}),
        }
        if body is not None:
            whole["Content-Type"] = "application/json"
        async with self._http.open(method, url, whole, body, timeout=self._timeout) as answer:
            # A redirect's body is not read.
            read = b"" if answer.status in REDIRECTS else await answer.read(self._limit)
            return Reply(answer.status, answer.headers, read, answer.url)

    def _unauthenticated(self, reply: Reply, refusal: Refusal) -> AuthenticationRequired:
        code, message = read_error(reply.body)
        said = f" ({message or code})" if message or code else ""
        where = redacted(self.base)
        if reply.status == 403:
            text = f"the registry {where} rejected this{said}"
        else:
            text = (
                f"the registry {where} requires credentials{said}: give auth= or bearer=, or log "
                "in "
                f"with: parley auth login {where}"
            )
        return AuthenticationRequired(text, status=reply.status, challenge=refusal.challenge)

    def _refused(self, reply: Reply) -> _Transient:
        code, message = read_error(reply.body)
        where, status = redacted(self.base), reply.status
        wait = seconds_of(reply.headers.get("retry-after"))
        if message or code:
            text = f"the registry {where} answered {status}: {message or code}"
        elif status in _NO_ROUTE:
            route = urlsplit(reply.url).path.rpartition("/")[2]
            text = f"{where} answered {status}: it has no route {route!r}; is it a registry?"
        else:
            text = f"the registry {where} answered {status}"
        return _Transient(RegistryRefused(text, status=status, code=code, retry_after=wait))

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except InvalidAnswer as error:
            raise NotARegistry(
                f"{redacted(self.base)} is not a registry, or its response is invalid: {error}"
            ) from None


class _Transient(UnexpectedStatus):
    """A response that a retry may change, for ``repeat``."""

    def __init__(self, refusal: RegistryRefused) -> None:
        self.refusal = refusal
        super().__init__(str(refusal), status=refusal.status, retry_after=refusal.retry_after)
