"""A catalog that is searched in this process, without a registry: a file, JSON, a fetched catalog.

It is an AI Catalog, with nested catalogs, or a simple list of servers: of addresses, of cards, or
of objects with ``name`` and ``url``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from parley.client.card.catalog import ListedAgent, parse_catalog
from parley.model.errors import InvalidParamsError
from parley.registry.catalog.entries import (
    A2A_CARD,
    CATALOG,
    MAX_NESTING,
    AirUrn,
    CatalogEntry,
    InvalidUrn,
    identifier_at,
)
from parley.registry.catalog.reading import InvalidCatalog, read_catalog, write_entry
from parley.registry.catalog.searching import (
    BrowseAnswer,
    ExploreRequest,
    Facet,
    ListedResult,
    ListRequest,
    QueryModel,
    SearchAnswer,
    SearchRequest,
)
from parley.registry.client.places import AgentNotFound, NotARegistry, RegistryRefused
from parley.registry.index.entry_search import ChangedEntry, EntrySearch, SearchTables
from parley.registry.ingest.reading import fields_of
from parley.registry.records import EntryDraft, EntrySelection, EntryStanding, Order
from parley.registry.search.filters import (
    constraints_of,
    constraints_of_expression,
    facets_of,
    order_of,
)
from parley.registry.search.searcher import as_score
from parley.registry.search.texts import texts_of

T = TypeVar("T")

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
    """Return the entries of a catalog and of its nested catalogs. Raises ``NotARegistry``."""
    try:
        catalog = read_catalog(document, max_entries=MAX_ENTRIES).catalog
    except InvalidCatalog as error:
        body = document if isinstance(document, bytes) else msgspec.json.encode(dict(document))
        simple = tuple(_from_list(parse_catalog(body, where)))
        if simple:
            return simple
        raise NotARegistry(f"{where} is not a catalog: {error}") from None
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
            identifier=identifier_at(host, "agent", name),
            display_name=name,
            type=A2A_CARD,
            url="" if agent.card is not None else url,
            data=agent.card,
            description=description if isinstance(description, str) else "",
            tags=tuple(_tags(card)),
        )


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

    ``source`` is the source that results name.
    """

    def __init__(self, entries: Iterable[CatalogEntry], source: str) -> None:
        self.entries = tuple({entry.identifier: entry for entry in entries}.values())
        self.source = source
        self._search = EntrySearch()

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """Return the entries that share words with the need, the best first."""
        selection = _selection(request.query)
        if not selection.words:
            return SearchAnswer()
        start = _offset(request.page_token)
        end = start + request.page_size
        ranked = await self._ask(lambda tables: tables.search(selection, end + 1 - start, start))
        found = [(self.entries[key], match) for key, match in ranked[: request.page_size]]
        return SearchAnswer(
            results=tuple(
                ListedResult(
                    entry=entry,
                    document=write_entry(entry),
                    score=as_score(match),
                    source=self.source,
                )
                for entry, match in found
            ),
            page_token=str(end) if len(ranked) > len(found) else "",
        )

    async def explore(self, request: ExploreRequest) -> dict[str, Facet]:
        """Return the values of fields with their counts."""
        selection = _selection(request.query)
        with _refused():
            facets = facets_of(request)
        found = {}
        for each, path in facets:
            ask = partial(SearchTables.facet, limit=each.limit, min_count=each.min_count)
            buckets, others = await self._ask(partial(ask, selection=selection, field=path))
            found[each.field] = Facet.of(buckets, others)
        return found

    async def browse(self, request: ListRequest) -> BrowseAnswer:
        """Return the entries in an order, by default by identifier."""
        with _refused():
            constraints = constraints_of_expression(request.filter)
            order = order_of(request.order_by) or (Order(field="identifier"),)
        selection = EntrySelection(constraints=constraints)
        start = _offset(request.page_token)
        end = start + request.page_size
        keys = await self._ask(lambda tables: tables.browse(selection, order, end - start, start))
        total = await self._ask(lambda tables: tables.count(selection))
        return BrowseAnswer(
            entries=tuple([self.entries[key] for key in keys]),
            total=total,
            page_token=str(end) if end < total else "",
        )

    async def entry(self, identifier: str) -> tuple[CatalogEntry, Mapping[str, Any]]:
        """Return the entry of an identifier, without details. Raises ``AgentNotFound``."""
        wanted = identifier.casefold()
        for each in self.entries:
            if each.identifier.casefold() == wanted:
                return each, {}
        raise AgentNotFound(f"{self.source} has no entry {identifier[:200]!r}")

    async def aclose(self) -> None:
        """Drop the searched entries. Idempotent."""
        await self._search.close()

    async def _ask(self, work: Callable[[SearchTables], T]) -> T:
        """Run a function on the search tables; the first call builds them in a thread."""
        if not self._search.change and self.entries:
            changed = await asyncio.to_thread(lambda: [*map(_listed, count(), self.entries)])
            await self._search.put(changed)
        return await self._search.run(work)


def _listed(key: int, entry: CatalogEntry) -> ChangedEntry:
    """Return an entry in the form that searches use, under its position in the catalog."""
    try:
        publisher = AirUrn.parse(entry.identifier).publisher
    except InvalidUrn:
        publisher = ""
    draft = EntryDraft(
        identifier=entry.identifier,
        source="",
        publisher=publisher,
        entry={"displayName": entry.display_name},
        version=entry.version,
        type=entry.type,
        fields=fields_of(entry, publisher=publisher, source=""),
        texts=texts_of(entry),
    )
    return ChangedEntry(key + 1, key, EntryStanding.LISTED.value, 0, 0, draft, "", "")


def _selection(query: QueryModel) -> EntrySelection:
    with _refused():
        return EntrySelection(constraints=constraints_of(query), words=query.text.strip())


@contextmanager
def _refused() -> Iterator[None]:
    """Raise ``RegistryRefused`` for an invalid request, as a registry does."""
    try:
        yield
    except InvalidParamsError as error:
        raise RegistryRefused(error.message, status=400, code="INVALID_ARGUMENT") from None


def _offset(token: str) -> int:
    if not token:
        return 0
    if not (token.isascii() and token.isdecimal() and len(token) < 9):
        raise RegistryRefused("the page token does not belong to this catalog", status=400)
    return int(token)
