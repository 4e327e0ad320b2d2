"""``Searcher``: searches, explorations and lists of one registry's own index (ARD §7).

A score (0 to 100) depends on the need, the entry, and the best match of the registry; not on the
page, and not on trust. If every word of a need is in the name, queries, tags or skills of the best
match, its score is 100. Missing words reduce the score by their share, and so do words in
descriptions only. With meaning, a score is the mean of both methods.

A page token holds the start of the next page, and is bound to the request. It grants nothing: a
caller who changes it only gets another part of the permitted results.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from parley.model.errors import InvalidParamsError
from parley.registry.catalog.searching import (
    MAX_PAGE,
    MAX_QUERY_TEXT,
    EntryPage,
    ExploreRequest,
    Facet,
    ListRequest,
    QueryModel,
    SearchRequest,
    SearchResponse,
    SearchResult,
)
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import (
    AgentHealth,
    EntrySelection,
    IndexedEntry,
    Liveness,
    Match,
    Viewer,
)
from parley.registry.search.filters import (
    constraints_of,
    constraints_of_expression,
    facets_of,
    order_of,
)
from parley.registry.search.meaning import Meaning

# Entries in responses: unchanged, with the registry's findings.

REGISTRY = "registry"
"""The member of a returned entry with the registry's findings. A publisher's own member of this
name is replaced.
"""


def answered(entry: IndexedEntry) -> Mapping[str, Any]:
    """Return an entry as JSON values. ``registry`` has its trust, the times when it was created and
    last changed here, its measured health, and the marks of its texts. None of it affects the
    score.
    """
    found: dict[str, Any] = {
        "trust": entry.trust.value,
        "createdAt": moment(entry.created_at, "seconds"),
        "updatedAt": moment(entry.updated_at, "seconds"),
    }
    if entry.trust_reason:
        found["trustReason"] = entry.trust_reason
    observed = entry.observed
    if observed.health is not AgentHealth.UNKNOWN:
        found["health"] = observed.health.value
    if observed.liveness is not Liveness.NONE:
        found["liveness"] = observed.liveness.value
    measured = {
        "availability": observed.availability,
        "errorRate": observed.error_rate,
        "latencyP50": observed.latency_p50,
        "latencyP95": observed.latency_p95,
    }
    found.update({name: value for name, value in measured.items() if value is not None})
    if entry.marks:
        found["marks"] = list(entry.marks)
    return {**entry.entry, REGISTRY: found}


def moment(ms: int, timespec: str = "milliseconds") -> str:
    """Return a time as text (ISO 8601)."""
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec=timespec)
    return text.replace("+00:00", "Z")


# Scores of results: how well an entry matches a need, from 0 to 100.

BEST = 100


def as_score(match: float, before: int = BEST) -> int:
    """Return a match between 0 and 1 as a score, which is not above the score before it.

    Only a full match has 100, and every match has at least 1.
    """
    score = BEST if match >= 1 else min(BEST - 1, round(BEST * match))
    return max(1, min(score, before))


# Page tokens: opaque, and bound to the request.

MAX_TOKEN = 300
MAX_OFFSET = 10_000_000
_VERSION = 2


class TokenPlace(msgspec.Struct, frozen=True, array_like=True):
    """The start of a page."""

    @property
    def is_sound(self) -> bool:
        """Return whether it is a valid start of a page."""
        return True


class PagePlace(TokenPlace, frozen=True, array_like=True):
    """The start of a page of an index. ``score`` is the last score of the page before."""

    offset: int = 0
    score: int = 100

    @property
    def is_sound(self) -> bool:
        """Return whether it is a valid start of a page."""
        return 0 <= self.offset <= MAX_OFFSET and 0 <= self.score <= 100


P = TypeVar("P", bound=TokenPlace)


def asked_digest(*asked: Any) -> str:
    """Return the digest of a request, to which its tokens are bound."""
    encoded = msgspec.json.encode(asked, order="deterministic")
    return blake2b(encoded, digest_size=9).hexdigest()


def page_token(asked: str, place: TokenPlace) -> str:
    """Return the token of a page."""
    encoded = msgspec.msgpack.encode((_VERSION, asked, place))
    return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def read_token(token: str, asked: str, kind: type[P], most: int) -> P:
    """Return the start of the page of a token of up to ``most`` characters. Raises
    ``InvalidParamsError``.
    """
    wrong = InvalidParamsError(
        "pageToken is not from this registry; send the token of the page before unchanged, or none "
        "for the first page"
    )
    if len(token) > most or not token.isascii():
        raise wrong
    try:
        encoded = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        version, of, given = msgspec.msgpack.decode(encoded, type=tuple[int, str, Any])
        place = msgspec.convert(given, kind)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        raise wrong from None
    if version != _VERSION or not place.is_sound:
        raise wrong
    if of != asked:
        raise InvalidParamsError(
            "pageToken belongs to another request; use it with the same query, filter "
            "and order, or begin without a token"
        )
    return place


def place_in(token: str, asked: str) -> PagePlace:
    """Return the start of the page of a token; without a token, of the first page. Raises
    ``InvalidParamsError``.
    """
    return read_token(token, asked, PagePlace, MAX_TOKEN) if token else PagePlace()


PUBLIC_VIEWER = Viewer()

BY_WORDS = 100
"""The number of matches by words ranked together with matches by meaning."""

BY_MEANING = 100
"""The most matches by meaning."""

NEAR, RELATIVE = 0.1, 0.3
"""The lowest match by meaning alone, as a fraction of a full match, and of the best match."""

CHUNK = 100
CHUNKS = 10
"""The number of batches of near entries read to find entries that pass a filter."""


class Searcher:
    """Searches an index. ``source`` is the address of the registry, for its results.

    With ``meaning``, needs are matched by words and by meaning. Every method raises
    ``InvalidParamsError`` for an invalid request, and ``StoreUnavailable``.
    """

    def __init__(
        self, index: RegistryIndex, *, source: str, meaning: Meaning | None = None
    ) -> None:
        self._index = index
        self._source = source
        self._meaning = meaning

    async def search(
        self, request: SearchRequest, viewer: Viewer = PUBLIC_VIEWER
    ) -> SearchResponse:
        """Return a page of the entries that match a need, the best first.

        The caller handles federation: ``federation`` is ignored here.
        """
        selection = _selection(request.query, viewer)
        if not selection.words:
            raise InvalidParamsError(
                "query.text is empty: describe the need; entries are listed without words by "
                "GET /agents, and counted by POST /explore"
            )
        size = _page_size(request.page_size)
        asked = asked_digest("search", selection.words, _constraints(selection))
        place = place_in(request.page_token, asked)
        if self._meaning is None:
            every = await self._index.search(selection, size + 1, place.offset)
        else:
            every = (await self._by_both(selection, self._meaning))[place.offset :]
        ranked, has_more = every[:size], len(every) > size
        results = []
        score = place.score
        for each in ranked:
            score = as_score(each.relevance, score)
            results.append(
                SearchResult(entry=answered(each.entry), score=score, source=self._source)
            )
        after = PagePlace(place.offset + len(results), score)
        token = page_token(asked, after) if results and has_more else ""
        return SearchResponse(results=tuple(results), page_token=token)

    async def explore(
        self, request: ExploreRequest, viewer: Viewer = PUBLIC_VIEWER
    ) -> Mapping[str, Facet]:
        """Return the values of fields with their counts, over all entries that ``search`` finds for
        the same query; over the whole index without a query.
        """
        facets = facets_of(request)
        selection = _selection(request.query, viewer)
        if selection.words and self._meaning is not None:
            every = await self._by_both(selection, self._meaning)
            keys = tuple(each.entry.key for each in every)
            selection = msgspec.structs.replace(selection, words="", keys=keys)
        found = {}
        for facet, field in facets:
            buckets, others = await self._index.facet(
                selection, field, facet.limit, facet.min_count
            )
            found[facet.field] = Facet.of(buckets, others)
        return found

    async def browse(self, request: ListRequest, viewer: Viewer = PUBLIC_VIEWER) -> EntryPage:
        """Return a page of entries in an order, with their total number."""
        constraints = constraints_of_expression(request.filter)
        order = order_of(request.order_by)
        size = _page_size(request.page_size)
        selection = EntrySelection(viewer=viewer, constraints=constraints)
        asked = asked_digest(
            "list", _constraints(selection), [(each.field, each.descending) for each in order]
        )
        place = place_in(request.page_token, asked)
        total = await self._index.count(selection)
        entries = await self._index.browse(selection, order, size, place.offset)
        end = place.offset + len(entries)
        token = page_token(asked, PagePlace(end)) if entries and end < total else ""
        return EntryPage(items=[*map(answered, entries)], total=total, page_token=token)

    async def _by_both(self, selection: EntrySelection, meaning: Meaning) -> list[Match]:
        """Return the matches by words or by meaning, the best first."""
        selection = msgspec.structs.replace(selection, words=meaning.read(selection.words))
        matches = await self._index.search(selection, BY_WORDS, 0)
        found = {each.entry.key: each.entry for each in matches}
        words = {each.entry.key: each.relevance for each in matches}
        near = await meaning.nearest(selection.words, CHUNK * CHUNKS)
        meanings = dict(near)
        least = max([NEAR, *[RELATIVE * match for _, match in near[:1]]])
        alone = [key for key, match in near if match >= least]
        found.update(await self._visible(selection, alone, found))
        ranked = [
            Match(entry=entry, relevance=(words.get(key, 0.0) + meanings.get(key, 0.0)) / 2)
            for key, entry in found.items()
        ]
        ranked.sort(key=lambda each: (-each.relevance, each.entry.key))
        return ranked

    async def _visible(
        self, selection: EntrySelection, keys: Sequence[int], known: Mapping[int, IndexedEntry]
    ) -> dict[int, IndexedEntry]:
        """Return the first entries that pass the filter and that the viewer may see."""
        unknown = [key for key in keys if key not in known]
        found: dict[int, IndexedEntry] = {}
        for at in range(0, len(unknown), CHUNK):
            if len(found) >= BY_MEANING:
                break
            chunk = msgspec.structs.replace(
                selection, words="", keys=tuple(unknown[at : at + CHUNK])
            )
            entries = {each.key: each for each in await self._index.browse(chunk, (), CHUNK, 0)}
            for key in unknown[at : at + CHUNK]:
                if key in entries and len(found) < BY_MEANING:
                    found[key] = entries[key]
        return found


def _selection(query: QueryModel, viewer: Viewer) -> EntrySelection:
    if len(query.text) > MAX_QUERY_TEXT:
        raise InvalidParamsError(
            f"query.text has {len(query.text)} characters; at most {MAX_QUERY_TEXT} are allowed: "
            "describe "
            "the need in a sentence or two"
        )
    return EntrySelection(
        viewer=viewer, constraints=constraints_of(query), words=query.text.strip()
    )


def _page_size(size: int) -> int:
    if not 1 <= size <= MAX_PAGE:
        raise InvalidParamsError(f"pageSize must be between 1 and {MAX_PAGE}, not {size}")
    return size


def _constraints(selection: EntrySelection) -> list[str]:
    """Return constraints in a fixed order, for the digest of a token."""
    return sorted(
        f"{each.field} {each.operator} {each.negated} {sorted(each.values)}"
        for each in selection.constraints
    )
