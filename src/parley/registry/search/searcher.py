"""``Searcher``: searches, explorations and lists of one registry's own index (ARD §7).

A score (0 to 100) depends on the need and the entry, and on the best match of the registry; not on
the page, and not on trust. Of a need whose every word stands in the name, the queries, the tags or
the skills of the best match, that has 100. Words that an entry lacks cost their share, and so does
standing in a description only. With meaning, a score is the mean of both ways.

A page token says where the next page begins, and is bound to what was asked. It grants nothing:
with one that was changed, a caller gets another part of what it may see anyway.
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

# Entries as they are answered: as they were read, with the registry's findings.

REGISTRY = "registry"
"""The member of an answered entry that has what the registry found out. An entry cannot have it of
itself: a publisher's member of this name is replaced.
"""


def answered(entry: IndexedEntry) -> Mapping[str, Any]:
    """Return an entry as JSON values. ``registry`` has its trust, when it was created and last
    changed here, its health as it was measured, and the marks of its texts. Nothing of it takes
    part in the score.
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
    """Return a match between 0 and 1 as a score, which is not above the one before it.

    Only a full match has full marks, and what matches at all has one.
    """
    score = BEST if match >= 1 else min(BEST - 1, round(BEST * match))
    return max(1, min(score, before))


# Page tokens: opaque, and bound to what was asked.

MAX_TOKEN = 300
MAX_OFFSET = 10_000_000
_VERSION = 2


class TokenPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a page begins."""

    @property
    def is_sound(self) -> bool:
        """Whether it may be the place of a page."""
        return True


class PagePlace(TokenPlace, frozen=True, array_like=True):
    """Where a page of an index begins. ``score`` is the last score of the page before."""

    offset: int = 0
    score: int = 100

    @property
    def is_sound(self) -> bool:
        """Whether it may be the place of a page."""
        return 0 <= self.offset <= MAX_OFFSET and 0 <= self.score <= 100


P = TypeVar("P", bound=TokenPlace)


def asked_digest(*asked: Any) -> str:
    """Return what a token is bound to: a digest of what was asked."""
    encoded = msgspec.json.encode(asked, order="deterministic")
    return blake2b(encoded, digest_size=9).hexdigest()


def page_token(asked: str, place: TokenPlace) -> str:
    """Return the token of a page."""
    encoded = msgspec.msgpack.encode((_VERSION, asked, place))
    return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def read_token(token: str, asked: str, kind: type[P], most: int) -> P:
    """Return where the page of a token of up to ``most`` characters begins. Raises
    ``InvalidParamsError``.
    """
    wrong = InvalidParamsError(
        "pageToken is none of this registry's; send the one of the page before as it was, or none "
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
            "pageToken is of another question; ask for its next page with the same query, filter "
            "and order, or begin without a token"
        )
    return place


def place_in(token: str, asked: str) -> PagePlace:
    """Return where the page of a token begins; without a token, the first. Raises
    ``InvalidParamsError``.
    """
    return read_token(token, asked, PagePlace, MAX_TOKEN) if token else PagePlace()


PUBLIC_VIEWER = Viewer()

BY_WORDS = 100
"""How many matches by words are ranked together with those by meaning."""

BY_MEANING = 100
"""How many entries are matched by meaning at most."""

NEAR, RELATIVE = 0.1, 0.3
"""An entry that is found by meaning alone has so much of a full match, and of the best one."""

CHUNK = 100
CHUNKS = 10
"""How many near entries are looked at, to find those that a filter leaves."""


class Searcher:
    """Searches an index. ``source`` is the address of the registry, which results have.

    With ``meaning``, needs are matched by words and by meaning. Every method raises
    ``InvalidParamsError`` for a request that is wrong, and ``StoreUnavailable``.
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

        Who federates does it around this: ``federation`` is not looked at.
        """
        selection = _selection(request.query, viewer)
        if not selection.words:
            raise InvalidParamsError(
                "query.text is empty: say what is needed; entries are listed without words by "
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
        """Return the values of fields with their counts, over all entries that ``search`` has for
        the same query; over the whole index without one.
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
        """Return a page of entries in an order, with the number of all."""
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
        """Return what matches by words or by meaning, the best first."""
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
        """Return the first of some entries that the filter and the viewer leave."""
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
            f"query.text has {len(query.text)} characters; at most {MAX_QUERY_TEXT} are read: say "
            "in a sentence or two what is needed"
        )
    return EntrySelection(
        viewer=viewer, constraints=constraints_of(query), words=query.text.strip()
    )


def _page_size(size: int) -> int:
    if not 1 <= size <= MAX_PAGE:
        raise InvalidParamsError(f"pageSize is between 1 and {MAX_PAGE}, not {size}")
    return size


def _constraints(selection: EntrySelection) -> list[str]:
    """Return constraints in one order, for the digest of a token."""
    return sorted(
        f"{each.field} {each.operator} {each.negated} {sorted(each.values)}"
        for each in selection.constraints
    )
