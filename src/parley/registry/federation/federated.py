"""``Federated``: a combined search of this registry's index and of other registries (ARD §8).

A Parley registry detects by the header (``Hops``) that a search came back to it. Other
implementations do not forward the header, so a search equal to a running search may be a loop: it
asks no other registry, and after a moment uses the results of the first search.

The pages form one list with each identifier once. A page token holds the position in every
registry's own pages, so no state is kept here. It is bound to the request and grants nothing: a
caller who changes it only gets another part of the permitted results.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b

import msgspec

from parley.client.bindings.http import HttpTransport
from parley.model.bounded import Bounded
from parley.model.errors import InvalidParamsError
from parley.registry.catalog.entries import REGISTRY_TYPES
from parley.registry.catalog.searching import (
    MAX_PAGE,
    FederationMode,
    RegistryReferral,
    SearchAnswer,
    SearchRequest,
    SearchResponse,
    SearchResult,
)
from parley.registry.federation.upstream import (
    MAX_HOPS,
    MAX_UPSTREAMS,
    CheckedResult,
    Hops,
    ResultChecks,
    Upstream,
    UpstreamRegistry,
    UpstreamState,
    not_ours,
    registry_id,
)
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import Constraint, EntrySelection, Viewer
from parley.registry.search.filters import constraints_of
from parley.registry.search.searcher import (
    PUBLIC_VIEWER,
    Searcher,
    TokenPlace,
    asked_digest,
    page_token,
    read_token,
)
from parley.security.egress import Egress

# Running searches: a search that comes back is not forwarded again.

MEMORY_SECONDS = 60.0
MAX_REMEMBERED = 10_000
PATIENCE = 0.4
"""The fraction of its time that a search waits for the results of the first equal search."""


class SharedSearch:
    """The responses of other registries to one search, as they arrive."""

    def __init__(self) -> None:
        self.pages: dict[str, SearchAnswer] = {}
        self.ended = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait until all registries have answered, or for some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ended.wait()


class RunningQueries:
    """The searches that are being forwarded, by their content; and the ids of recent searches."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.running: dict[str, SharedSearch] = {}
        self._known: Bounded[str, float] = Bounded(MAX_REMEMBERED)

    def is_new(self, query: str) -> bool:
        """Return whether a search is new here, and remember it."""
        now = self._clock()
        seen_at = self._known.get(query)
        if seen_at is not None and now - seen_at < MEMORY_SECONDS:
            return False
        self._known[query] = now
        return True

    def begin(self, asked: str) -> SharedSearch:
        """Record that a search is forwarded. Call ``end`` for it later."""
        shared = self.running[asked] = SharedSearch()
        return shared

    def end(self, asked: str) -> None:
        """Record that all registries have answered, or that the time is over."""
        shared = self.running.pop(asked, None)
        if shared is not None:
            shared.ended.set()


# Pages over the results of several registries: one list, each identifier once.

PREFIX = "f."
MAX_TOKEN = 2_000
MAX_SEEN = 150
"""The number of results of other registries a token remembers, to avoid listing them twice."""

FIRST, MOST_OF_ONE = 10, 3
"""The first places of a page, and how many of them one other registry may fill."""

OWN = "own"
_DIGEST = 4


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The position in a registry: the token of its page, and how many of its results are used."""

    token: str = ""
    used: int = 0


class MergedPlace(TokenPlace, frozen=True, array_like=True):
    """The start of a page. A registry without a cursor has no more results. ``size`` is the size of
    the requested pages; ``seen`` has digests of identifiers.
    """

    size: int
    cursors: dict[str, Cursor]
    seen: bytes = b""

    @property
    def is_sound(self) -> bool:
        """Return whether it is a valid start of a page."""
        return (
            1 <= self.size <= MAX_PAGE
            and len(self.seen) <= MAX_SEEN * _DIGEST
            and all(
                0 <= each.used <= MAX_PAGE and len(each.token) < MAX_TOKEN
                for each in self.cursors.values()
            )
        )


class SourcePage:
    """Results of one registry, the best first, and the position of its next page."""

    def __init__(
        self, name: str, results: Sequence[CheckedResult], cursor: Cursor, more: str
    ) -> None:
        self.name = name
        self.results = results
        self.at = min(cursor.used, len(results))
        self._cursor = cursor
        self._more = more

    @property
    def head(self) -> CheckedResult | None:
        """The next result."""
        return self.results[self.at] if self.at < len(self.results) else None

    @property
    def cursor(self) -> Cursor | None:
        """The position after the used results, ``None`` at the end."""
        if self.at < len(self.results):
            return Cursor(self._cursor.token, self.at)
        return Cursor(self._more) if self._more else None


def merged(
    pages: Sequence[SourcePage], size: int, seen: bytes, ranks: Mapping[str, int]
) -> tuple[list[CheckedResult], bytes]:
    """Return the best results of some pages, and the digests of all identifiers seen.

    Results of other registries are ranked by their texts, but below our own result at the same
    position of its list, and with at most ``MOST_OF_ONE`` results of one registry among the first
    ``FIRST`` while others have more. For a duplicate identifier, the result of the page with the
    lowest number in ``ranks`` is used: registries that may speak for its publisher first, then our
    own order.
    """
    known = {seen[at : at + _DIGEST] for at in range(0, len(seen), _DIGEST)}
    best: dict[str, tuple[int, int]] = {}
    for number, page in enumerate(pages):
        for each in page.results[page.at :]:
            rank = ranks.get(f"{each.place}:{each.publisher}", 1), number
            best[each.identifier] = min(rank, best.get(each.identifier, rank))
    found: list[CheckedResult] = []
    taken = Counter({page.name: 0 for page in pages})
    while len(found) < size:
        for number, page in enumerate(pages):
            while (at := page.head) is not None and (
                _digest(at.identifier) in known or best[at.identifier][1] != number
            ):
                page.at += 1
        heads = {page.name: head for page in pages if (head := page.head) is not None}
        if not heads:
            break
        behind = {
            name
            for name in heads
            if name != OWN
            and (
                (OWN in heads and taken[name] >= taken[OWN])
                or (len(found) < FIRST and taken[name] >= MOST_OF_ONE)
            )
        }
        page = max(
            [page for page in pages if page.name in heads],
            key=lambda each: (each.name not in behind, heads[each.name].score),
        )
        head = heads[page.name]
        page.at += 1
        taken[page.name] += 1
        known.add(_digest(head.identifier))
        if head.place:  # this registry's own entries take precedence
            seen += _digest(head.identifier)
        score = min(head.score, found[-1].score) if found else head.score
        found.append(msgspec.structs.replace(head, score=score))
    return found, seen[-MAX_SEEN * _DIGEST :]


def write_token(asked: str, place: MergedPlace) -> str:
    """Return the token of a page; empty at the end of all registries."""
    cursors = dict(place.cursors)
    while cursors:
        token = PREFIX + page_token(asked, MergedPlace(place.size, cursors, place.seen))
        if len(token) <= MAX_TOKEN:
            return token
        # The registry with the longest token has no further pages.
        del cursors[max(cursors, key=lambda name: len(cursors[name].token))]
    return ""


def place_of_token(token: str, asked: str) -> MergedPlace:
    """Return the start of the page of a token. Raises ``InvalidParamsError``."""
    return read_token(token.removeprefix(PREFIX), asked, MergedPlace, MAX_TOKEN)


def _digest(identifier: str) -> bytes:
    return blake2b(identifier.encode(), digest_size=_DIGEST).digest()


SECONDS = 2.0
"""The time limit of a search in other registries, in seconds; later responses are left out."""

CONNECT_SECONDS = 1.5
ROUNDS = 2
"""How often registries are asked for one page: a second time if the page is short and they have
more.
"""

FAIR = 0.5
"""The fraction of the time limit that a registry must have had before lateness counts as its
failure.
"""

LEAST_SECONDS = 0.05
"""The least remaining time, in seconds, with which another registry is still asked."""

MAX_REFERRALS = 50
_START = Cursor()


class Federated:
    """Combined searches of an index and other registries. ``source`` is the address of this
    registry.

    ``seconds`` bounds a search, ``hops`` how often it may be forwarded. ``egress`` judges the
    addresses of other registries' entries: public addresses over https, and addresses that it
    allows by name. Close it in its event loop.
    """

    def __init__(
        self,
        searcher: Searcher,
        upstreams: Sequence[Upstream] = (),
        *,
        index: RegistryIndex,
        source: str,
        seconds: float = SECONDS,
        hops: int = 2,
        egress: Egress | None = None,
        http: HttpTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if len(upstreams) > MAX_UPSTREAMS:
            raise ValueError(
                f"a registry asks at most {MAX_UPSTREAMS} others, not {len(upstreams)}"
            )
        if not 0 <= hops <= MAX_HOPS:
            raise ValueError(f"hops must be a number from 0 to {MAX_HOPS}, not {hops}")
        if not 0 < seconds <= 10:
            raise ValueError(f"seconds must be above 0 and at most 10, not {seconds}")
        # Without an address of its own, other registries cannot name it; then the search ids reveal
        # loops.
        self.id = registry_id(source) if source else secrets.token_hex(6)
        self._searcher = searcher
        self._index = index
        self._source = source
        self._seconds = seconds
        self._hops = hops
        self._egress = egress or Egress()
        self._owns_http = http is None
        self._http = http or HttpTransport(
            connect_timeout=CONNECT_SECONDS, max_connections=256, bound_to_turns=False
        )
        made = [UpstreamRegistry(each, self._http, clock) for each in upstreams]
        self._upstreams = tuple({each.id: each for each in made if each.id != self.id}.values())
        if len(self._upstreams) < len(made):
            raise ValueError(
                "an upstream registry is given twice, or is this registry: "
                + ", ".join(each.url for each in made)
            )
        self._queries = RunningQueries(clock)
        self._clock = clock

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        for each in self._upstreams:
            await each.aclose()
        if self._owns_http:
            await self._http.close()

    @property
    def states(self) -> tuple[UpstreamState, ...]:
        """The states of the other registries, for operators."""
        return tuple(each.state for each in self._upstreams)

    # -- requests ------------------------------------------------------------------------------

    async def search(
        self, request: SearchRequest, viewer: Viewer = PUBLIC_VIEWER, hops: Hops | None = None
    ) -> SearchResponse:
        """Return a page of the entries that match a need, the best first.

        ``hops`` is the path of a forwarded search, from its header; ``None`` for a search by a
        client. A search that was here before returns nothing: its results are on their way already.
        A registry that does not answer, or answers wrongly, is left out. Raises ``A2AError`` and
        ``StoreUnavailable``.
        """
        if hops is not None:  # clients may send the header too: it can only reduce the search
            hops = msgspec.structs.replace(hops, left=min(hops.left, self._hops))
        if hops is not None and (self.id in hops.path or not self._queries.is_new(hops.query)):
            return SearchResponse()
        if request.federation is FederationMode.REFERRALS:
            found = await self._searcher.search(request, viewer)
            return msgspec.structs.replace(found, referrals=await self._referrals(viewer))
        if request.federation is FederationMode.NONE:
            return await self._searcher.search(request, viewer)
        is_merged = request.page_token.startswith(PREFIX)
        if hops is None:
            hops = Hops.begin(self._hops, self._seconds)
            self._queries.is_new(hops.query)
        if not is_merged and (request.page_token or not self._asked(hops)):
            return await self._searcher.search(request, viewer)
        return await self._search_all(request, viewer, hops)

    async def _referrals(self, viewer: Viewer) -> tuple[RegistryReferral, ...]:
        """Return the registries for referrals: the upstream registries, and registries in the
        index.
        """
        found = {each.base: each.referral for each in self._upstreams}
        of_type = Constraint(field="type", values=REGISTRY_TYPES)
        selection = EntrySelection(viewer=viewer, constraints=(of_type,))
        for each in await self._index.browse(selection, (), MAX_REFERRALS, 0):
            url, name = each.entry.get("url"), each.entry.get("displayName")
            if isinstance(url, str) and url:
                referral = RegistryReferral(
                    identifier=each.identifier,
                    display_name=name if isinstance(name, str) else each.identifier,
                    type=each.type or REGISTRY_TYPES[0],
                    url=url,
                )
                found.setdefault(url, referral)
        return tuple(found.values())[:MAX_REFERRALS]

    # -- the combined search ----------------------------------------------------------------------

    def _asked(self, hops: Hops) -> tuple[UpstreamRegistry, ...]:
        """Return the registries to which a search may be forwarded: none that it has passed
        already.
        """
        if hops.left < 1 or hops.seconds < LEAST_SECONDS:
            return ()
        return tuple(each for each in self._upstreams if each.id not in hops.path)

    async def _search_all(
        self, request: SearchRequest, viewer: Viewer, hops: Hops
    ) -> SearchResponse:
        if not 1 <= request.page_size <= MAX_PAGE:
            raise InvalidParamsError(
                f"pageSize must be between 1 and {MAX_PAGE}, not {request.page_size}"
            )
        query = request.query
        constraints = constraints_of(query)
        asked = asked_digest("federated", " ".join(query.text.split()).casefold(), constraints)
        if request.page_token:
            place = place_of_token(request.page_token, asked)
        else:
            size = min(MAX_PAGE, 2 * request.page_size)
            place = MergedPlace(
                size, {each.id: Cursor() for each in self._asked(hops)} | {OWN: Cursor()}
            )
        deadline = self._clock() + min(self._seconds, hops.seconds)
        checks = ResultChecks(
            query.text,
            constraints,
            own_source=self._source,
            others=frozenset(each.base for each in self._upstreams),
            egress=self._egress,
        )
        found: list[CheckedResult] = []
        for _ in range(ROUNDS):
            sources = await self._sources(request, viewer, place, hops, deadline, checks)
            added, place = self._merged(place, sources, request.page_size - len(found))
            found += added
            if len(found) == request.page_size or not place.cursors:
                break
            hops = msgspec.structs.replace(hops, query=Hops.begin(0, 0).query)
        results = await asyncio.to_thread(
            lambda: [
                SearchResult(entry=each.answered, score=each.score, source=each.source)
                for each in found
            ]
        )
        return SearchResponse(results=tuple(results), page_token=write_token(asked, place))

    async def _sources(
        self,
        request: SearchRequest,
        viewer: Viewer,
        place: MergedPlace,
        hops: Hops,
        deadline: float,
        checks: ResultChecks,
    ) -> list[SourcePage]:
        """Return a page of each registry that answers in time, with its accepted results."""
        asking = asyncio.create_task(self._ask_all(request, place, hops, deadline))
        try:
            own = await self._own_page(request, viewer, place)
            pages = await asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        every: list[CheckedResult] = []
        for number, each in enumerate(self._upstreams, 1):
            if each.id in pages:
                results, refused = await asyncio.to_thread(
                    checks.check, pages[each.id], each, number
                )
                each.refused.update(refused)
                every += results
        kept = await not_ours(every, self._upstreams, self._index)
        by_place: dict[int, list[CheckedResult]] = {}
        for result in kept:
            by_place.setdefault(result.place, []).append(result)
        sources = [] if own is None else [own]
        for number, upstream in enumerate(self._upstreams, 1):
            if upstream.id in pages:
                cursor, page = place.cursors[upstream.id], pages[upstream.id]
                more = page.page_token if page.results else ""  # an empty page is the last
                sources.append(SourcePage(upstream.id, by_place.get(number, ()), cursor, more))
        return sources

    def _merged(
        self, place: MergedPlace, sources: list[SourcePage], size: int
    ) -> tuple[list[CheckedResult], MergedPlace]:
        """Return the best results of some pages, and the start of the next page."""
        ranks = {
            f"{each.place}:{each.publisher}": 0
            for source in sources
            for each in source.results
            if each.place and self._upstreams[each.place - 1].may_speak_for(each.publisher)
        }
        found, seen = merged(sources, size, place.seen, ranks)
        cursors = {each.name: each.cursor for each in sources}
        left = {name: cursor for name, cursor in cursors.items() if cursor is not None}
        if found:  # a registry without an answer keeps its position
            unheard = place.cursors.keys() - cursors.keys()
            left |= {name: place.cursors[name] for name in unheard if place.cursors[name] != _START}
        return found, MergedPlace(place.size, left, seen)

    async def _own_page(
        self, request: SearchRequest, viewer: Viewer, place: MergedPlace
    ) -> SourcePage | None:
        cursor = place.cursors.get(OWN)
        if cursor is None:
            return None
        own = msgspec.structs.replace(request, page_size=place.size, page_token=cursor.token)
        found = await self._searcher.search(own, viewer)
        results = [
            CheckedResult(
                identifier=str(each.entry.get("identifier", "")),
                publisher="",
                entry=each.entry,
                score=each.score,
                source=each.source,
                place=0,
            )
            for each in found.results
        ]
        return SourcePage(OWN, results, cursor, found.page_token)

    async def _ask_all(
        self, request: SearchRequest, place: MergedPlace, hops: Hops, deadline: float
    ) -> Mapping[str, SearchAnswer]:
        """Return the pages of the registries that answered in time, by their ids."""
        asking = [each for each in self._asked(hops) if each.id in place.cursors]
        query = request.query
        words = " ".join(query.text.split()).casefold()
        key = asked_digest("running", words, query.filter, place.cursors, hops.left)
        left = deadline - self._clock()
        shared = self._queries.running.get(key)
        if shared is not None:
            await shared.wait(PATIENCE * max(left, 0.0))
            return {id: page for id, page in shared.pages.items() if id in place.cursors}
        if left < LEAST_SECONDS:
            return {}
        # A short deadline of one caller must not open a circuit, nor count as the registry's
        # failure.
        is_fair = left >= FAIR * self._seconds
        asking = [each for each in asking if each.take()]
        if not asking:
            return {}
        shared = self._queries.begin(key) if is_fair else SharedSearch()
        ids = (self.id, *(each.id for each in asking))
        tasks = {
            each: asyncio.create_task(
                self._ask(
                    each,
                    request,
                    place,
                    hops.onward(tuple([id for id in ids if id != each.id]), left),
                    shared,
                )
            )
            for each in asking
        }
        late: set[asyncio.Task[None]] = set()
        try:
            _, late = await asyncio.wait(tasks.values(), timeout=max(left, 0.0))
        finally:
            for task in tasks.values():
                task.cancel()
            ended = await asyncio.gather(*tasks.values(), return_exceptions=True)
            if is_fair:
                self._queries.end(key)
            for each, task in tasks.items():
                counts = is_fair and not place.cursors[each.id].token
                each.release(is_late=counts and task in late)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        return shared.pages

    async def _ask(
        self,
        upstream: UpstreamRegistry,
        request: SearchRequest,
        place: MergedPlace,
        onward: Hops,
        shared: SharedSearch,
    ) -> None:
        """Ask one registry for a page; it may ask other registries as long as hops are left."""
        mode = FederationMode.AUTO if onward.left else FederationMode.NONE
        asked = msgspec.structs.replace(
            request,
            federation=mode,
            page_size=place.size,
            page_token=place.cursors[upstream.id].token,
        )
        page = await upstream.ask(asked, onward)
        if page is not None:
            shared.pages[upstream.id] = page
