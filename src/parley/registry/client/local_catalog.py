"""A catalog that is searched here, by words, without a registry: a file, JSON, a fetched catalog.

It is an AI Catalog, with catalogs nested in it, or a simple list of servers: of addresses, of
cards, or of objects with ``name`` and ``url``.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from parley.client.card.catalog import ListedAgent, parse_catalog
from parley.registry.catalog.entries import (
    A2A_CARD,
    CATALOG,
    MAX_NESTING,
    AirUrn,
    CatalogEntry,
    InvalidUrn,
    segment,
)
from parley.registry.catalog.reading import InvalidCatalog, read_catalog, write_entry
from parley.registry.catalog.searching import (
    BrowseAnswer,
    ExploreRequest,
    Facet,
    FacetBucket,
    ListedResult,
    ListRequest,
    QueryModel,
    SearchAnswer,
    SearchRequest,
)
from parley.registry.client.places import AgentNotFound, NotARegistry, RegistryRefused

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENDINGS = ("ations", "ation", "ings", "ing", "ions", "ion", "ers", "er", "ies", "es", "ed", "s")
_ALL_ENDINGS = (*_ENDINGS, "e")
_SHORTEST = 3
MAX_WORDS = 64
MISSPELLED_FROM = 5
"""How many letters a word has for which others stand that differ in one."""

# Words of requests that say nothing about what is needed.
_EMPTY_TEXT = """
a an and any are at be by can could do does find for from get give have help how i in into
is it me my need of on one or please show some someone something that the their them there
this to us want we what when where which who will with would you your agent agents service
"""
_EMPTY = frozenset(_EMPTY_TEXT.split())


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text, in lower case and without common English endings."""
    spread = _CAMEL.sub(" ", text)
    found = (_stem(word) for word in _WORD.findall(spread.casefold()))
    return frozenset(found)


def need_of(text: str) -> frozenset[str]:
    """Return the words of a need that say what it is; all of them if none does."""
    words = _WORD.findall(_CAMEL.sub(" ", text).casefold())[:MAX_WORDS]
    telling = [word for word in words if word not in _EMPTY]
    return frozenset(map(_stem, telling or words))


def match(need: frozenset[str], entry: CatalogEntry) -> float:
    """Return how well an entry meets a need by its words, 0 to 1.

    A word in the name, the queries, tags or capabilities counts whole; one in the description or
    the identifier counts less, and less again one that is only alike (convert, conversion).
    """
    if not need:
        return 0.0
    queries = " ".join(entry.representative_queries)
    named = words_of(" ".join((entry.display_name, queries, *entry.tags, *entry.capabilities)))
    described = words_of(f"{entry.description} {entry.identifier}")
    points = 0.0
    for word in need:
        if word in named:
            points += 1.0
        elif word in described:
            points += 0.7
        elif any(_are_alike(word, each) for each in (*named, *described)):
            points += 0.5
    return points / len(need)


def _are_alike(one: str, other: str) -> bool:
    """Return whether two words begin with the same letters, but for a fifth of the longer one."""
    if one[0] != other[0]:
        return False
    longer = max(len(one), len(other))
    shared = math.ceil(longer * 0.8)
    has_beginning = longer > _SHORTEST + 2 and one[:shared] == other[:shared]
    return has_beginning or is_misspelling(one, other)


def is_misspelling(one: str, other: str) -> bool:
    """Return whether two words of five letters or more differ in one letter, or in the order of two
    neighbours, after the first two letters.
    """
    if min(len(one), len(other)) < MISSPELLED_FROM or abs(len(one) - len(other)) > 1:
        return False
    if one[:2] != other[:2] or one == other or not (one.isalpha() and other.isalpha()):
        return False
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), -1)
    if at < 0:  # the longer one has one letter more at its end
        return True
    if len(one) == len(other):
        is_swapped = (
            one[at : at + 2] == other[at : at + 2][::-1] and one[at + 2 :] == other[at + 2 :]
        )
        return is_swapped or one[at + 1 :] == other[at + 1 :]
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    return longer[at + 1 :] == shorter[at:]


def _stem(word: str) -> str:
    if not word.endswith(_ALL_ENDINGS):
        return word
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST:
            return word.removesuffix(ending)
    return word.removesuffix("e") if len(word) > _SHORTEST else word


MAX_FILE = 16 * 1024 * 1024
MAX_ENTRIES = 10_000


def read_file(path: Path) -> bytes:
    """Return the bytes of a catalog file. Raises ``NotARegistry``."""
    try:
        with path.expanduser().open("rb") as file:
            body = file.read(MAX_FILE + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NotARegistry(f"the catalog file {str(path)[:200]} cannot be read: {reason}") from None
    if len(body) > MAX_FILE:
        raise NotARegistry(f"the catalog file {path} is larger than {MAX_FILE:,} bytes")
    return body


def read_entries(document: bytes | Mapping[str, Any], where: str) -> tuple[CatalogEntry, ...]:
    """Return the entries of a catalog, those of catalogs within it too. Raises ``NotARegistry``."""
    try:
        catalog = read_catalog(document, max_entries=MAX_ENTRIES).catalog
    except InvalidCatalog as error:
        body = document if isinstance(document, bytes) else msgspec.json.encode(dict(document))
        simple = tuple(_from_list(parse_catalog(body, where)))
        if simple:
            return simple
        raise NotARegistry(f"{where} is no catalog: {error}") from None
    return tuple(_flat(catalog.entries, MAX_NESTING))[:MAX_ENTRIES]


def _flat(entries: Iterable[CatalogEntry], levels: int) -> Iterator[CatalogEntry]:
    for entry in entries:
        yield entry
        if entry.type == CATALOG and isinstance(entry.data, Mapping) and levels:
            try:
                inner = read_catalog(entry.data, max_entries=MAX_ENTRIES).catalog.entries
            except InvalidCatalog:
                continue
            yield from _flat(inner, levels - 1)


def _from_list(agents: Iterable[ListedAgent]) -> Iterator[CatalogEntry]:
    for agent in agents:
        url = agent.card_url or agent.url
        if not url and agent.card is None:
            continue
        host = urlsplit(url).hostname or "localhost"
        name = agent.name or host
        card: Mapping[str, Any] = agent.card or {}
        description = card.get("description")
        yield CatalogEntry(
            identifier=_identifier(host, name),
            display_name=name,
            type=A2A_CARD,
            url="" if agent.card is not None else url,
            data=agent.card,
            description=description if isinstance(description, str) else "",
            tags=tuple(_tags(card)),
        )


def _identifier(host: str, name: str) -> str:
    try:
        return str(AirUrn.parse(f"urn:air:{host}:agent:{segment(name)}"))
    except InvalidUrn:
        return f"urn:air:{segment(host).replace('.', '-')}.localhost:agent:{segment(name)}"


def _tags(card: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names and the tags of a card's skills."""
    skills = card.get("skills")
    for skill in skills[:50] if isinstance(skills, list) else ():
        if isinstance(skill, Mapping):
            tags = skill.get("tags")
            for each in (skill.get("name"), *(tags[:50] if isinstance(tags, list) else ())):
                if isinstance(each, str):
                    yield each


class LocalCatalog:
    """Searches entries as a registry does: by words and filters, with scores and pages.

    ``source`` is what results say they come from.
    """

    def __init__(self, entries: Iterable[CatalogEntry], source: str) -> None:
        self.entries = tuple({entry.identifier: entry for entry in entries}.values())
        self.source = source

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """Return the entries that share words with the need, the best first.

        It reads them in a thread: a catalog of the web may have megabytes of words.
        """
        return await asyncio.to_thread(self._search, request)

    def _search(self, request: SearchRequest) -> SearchAnswer:
        need = need_of(request.query.text)
        scored = [(round(100 * match(need, each)), each) for each in self._filtered(request.query)]
        ranked = sorted((each for each in scored if each[0]), key=lambda each: -each[0])
        start = _offset(request.page_token)
        end = start + request.page_size
        return SearchAnswer(
            results=tuple(
                ListedResult(entry=e, document=write_entry(e), score=score, source=self.source)
                for score, e in ranked[start:end]
            ),
            page_token=str(end) if end < len(ranked) else "",
        )

    async def explore(self, request: ExploreRequest) -> dict[str, Facet]:
        """Return the values of fields with their counts."""
        return await asyncio.to_thread(self._explore, request)

    def _explore(self, request: ExploreRequest) -> dict[str, Facet]:
        need = need_of(request.query.text)
        found = [e for e in self._filtered(request.query) if not need or match(need, e)]
        return {each.field: _facet(found, each.field, each.limit) for each in request.facets}

    async def browse(self, request: ListRequest) -> BrowseAnswer:
        """Return the entries, by identifier. Filters and orders are for registries."""
        if request.filter or request.order_by:
            raise RegistryRefused(
                f"{self.source} is a catalog and no registry: it is listed whole, without a "
                "filter expression and an order; search takes filters",
                status=501,
            )
        start = _offset(request.page_token)
        end = start + request.page_size
        ordered = sorted(self.entries, key=lambda each: each.identifier)
        token = str(end) if end < len(ordered) else ""
        return BrowseAnswer(entries=tuple(ordered[start:end]), total=len(ordered), page_token=token)

    async def entry(self, identifier: str) -> tuple[CatalogEntry, Mapping[str, Any]]:
        """Return the entry of an identifier, with nothing beside. Raises ``AgentNotFound``."""
        wanted = identifier.casefold()
        for each in self.entries:
            if each.identifier.casefold() == wanted:
                return each, {}
        raise AgentNotFound(f"{self.source} has no entry {identifier[:200]!r}")

    async def aclose(self) -> None:
        """Do nothing: nothing is open."""

    def _filtered(self, query: QueryModel) -> Iterator[CatalogEntry]:
        for entry in self.entries:
            document = write_entry(entry)
            if all(
                _has_one(values_at(document, path), values) for path, values in query.filter.items()
            ):
                yield entry


def values_at(document: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Return the values at a field path, in lists too; ``publisher`` is in the identifier."""
    if path == "publisher":
        try:
            return (AirUrn.parse(str(document.get("identifier", ""))).publisher,)
        except InvalidUrn:
            return ()
    level: list[Any] = [document]
    for name in path.split("."):
        level = [
            each[name] for each in _spread(level) if isinstance(each, Mapping) and name in each
        ]
    return tuple(str(each) for each in _spread(level) if isinstance(each, str | int | float | bool))


def _spread(values: Iterable[Any]) -> Iterator[Any]:
    for each in values:
        if isinstance(each, list | tuple):
            yield from _spread(each)
        else:
            yield each


def _has_one(found: Iterable[str], wanted: Iterable[str]) -> bool:
    here = {each.casefold() for each in found}
    return any(each.casefold() in here for each in wanted)


def _facet(entries: Iterable[CatalogEntry], field: str, limit: int) -> Facet:
    counts: dict[str, int] = {}
    for entry in entries:
        for value in set(values_at(write_entry(entry), field)):
            counts[value] = counts.get(value, 0) + 1
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    buckets = tuple(FacetBucket(value=value, count=count) for value, count in ordered[:limit])
    return Facet(buckets=buckets, other_count=sum(count for _, count in ordered[limit:]))


def _offset(token: str) -> int:
    if not token:
        return 0
    if not (token.isascii() and token.isdecimal() and len(token) < 9):
        raise RegistryRefused("the page token is not of this catalog", status=400)
    return int(token)
