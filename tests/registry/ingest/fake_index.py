"""An in-memory index without search, for tests of crawling; it follows the index protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from parley.registry.records import (
    CardVersion,
    EntryDraft,
    EntrySelection,
    EntryStanding,
    IndexedEntry,
    Match,
    Order,
    Source,
    SourceState,
    Viewer,
)


class FakeIndex:
    """Entries by identifier and source, sources by address. ``time`` is in ms."""

    name = "fake"

    def __init__(self) -> None:
        self.time = 1_000_000_000_000
        self.kept: dict[tuple[str, str], IndexedEntry] = {}
        self.places: dict[str, Source] = {}
        self.claims: dict[str, float] = {}
        self.puts: list[int] = []
        self.failure: Exception | None = None

    def now(self) -> int:
        return self.time

    async def put(self, drafts: Sequence[EntryDraft]) -> list[IndexedEntry]:
        if self.failure is not None:
            raise self.failure
        self.puts.append(len(drafts))
        found = []
        for draft in drafts:
            known = self.kept.get((draft.identifier, draft.source))
            members = {name: getattr(draft, name) for name in draft.__struct_fields__}
            entry = IndexedEntry(
                **members,
                key=known.key if known else len(self.kept) + 1,
                created_at=known.created_at if known else self.time,
                updated_at=self.time,
                seen_at=self.time,
            )
            # A value that an index cannot store fails the test.
            msgspec.json.encode(entry)
            self.kept[draft.identifier, draft.source] = entry
            found.append(entry)
        return found

    async def withdraw(self, source: str, keep: Sequence[str], reason: str) -> int:
        lost = [
            (key, each)
            for key, each in self.kept.items()
            if each.source == source
            and each.identifier not in set(keep)
            and each.standing is not EntryStanding.WITHDRAWN
        ]
        for key, each in lost:
            self.kept[key] = msgspec.structs.replace(
                each, standing=EntryStanding.WITHDRAWN, reason=reason
            )
        return len(lost)

    async def decide(self, key: int, standing: EntryStanding, reason: str, by: str) -> bool:
        for place, each in self.kept.items():
            if each.key == key:
                self.kept[place] = msgspec.structs.replace(each, standing=standing, reason=reason)
                return True
        return False

    async def browse(
        self, selection: EntrySelection, order: Sequence[Order], limit: int, offset: int
    ) -> list[IndexedEntry]:
        def holds(entry: IndexedEntry) -> bool:
            return entry.standing in selection.standings and all(
                set(each.values) & set(entry.fields.get(each.field, ()))
                for each in selection.constraints
            )

        found = sorted(filter(holds, self.kept.values()), key=lambda each: each.identifier)
        return found[offset : offset + limit]

    async def entries_of(self, identifier: str) -> list[IndexedEntry]:
        return [each for each in self.kept.values() if each.identifier == identifier]

    async def entry(self, identifier: str, viewer: Viewer) -> IndexedEntry | None:
        found = await self.entries_of(identifier)
        return found[0] if found else None

    async def add_sources(self, sources: Sequence[Source]) -> int:
        new = {each.url: each for each in sources if each.url not in self.places}
        # As in a database: lists instead of tuples.
        self.places.update({url: _stored(each) for url, each in new.items()})
        return len(new)

    async def claim_sources(self, limit: int, lease: float) -> list[Source]:
        if self.failure is not None:
            raise self.failure
        due = [
            each
            for each in self.places.values()
            if each.due_at <= self.time and self.claims.get(each.url, 0) <= self.time
        ][:limit]
        for each in due:
            self.claims[each.url] = self.time + lease * 1000
        return due

    async def renew_sources(self, urls: Sequence[str], lease: float) -> None:
        for url in urls:
            self.claims[url] = self.time + lease * 1000

    async def end_visit(self, source: Source, began: Source | None = None) -> bool:
        now = self.places.get(source.url)
        if now is None:
            return False
        if began is not None and (now.found_by, now.settings) != (began.found_by, began.settings):
            source = msgspec.structs.replace(now, state=source.state, etag="", due_at=0)
        self.places[source.url] = _stored(source)
        self.claims.pop(source.url, None)
        return True

    async def change_source(self, source: Source) -> None:
        self.places[source.url] = _stored(source)

    async def source(self, url: str) -> Source | None:
        return self.places.get(url)

    async def sources(
        self, state: SourceState | None = None, limit: int = 1000
    ) -> Sequence[Source]:
        found = [each for each in self.places.values() if state in (None, each.state)]
        return found[:limit]

    async def remove_source(self, url: str) -> bool:
        await self.withdraw(url, (), "its source was removed")
        return self.places.pop(url, None) is not None

    async def search(self, *arguments: Any) -> list[Match]:
        raise NotImplementedError

    async def count(self, selection: EntrySelection) -> int:
        raise NotImplementedError

    async def facet(self, *arguments: Any) -> tuple[list[tuple[str, int]], int]:
        raise NotImplementedError

    async def versions(self, identifier: str, limit: int = 50) -> list[CardVersion]:
        return []

    async def changes(self, after: int, limit: int) -> list[IndexedEntry]:
        return []

    # State for the assertions of tests.

    def standing(self, identifier: str) -> str:
        [found] = [each for each in self.kept.values() if each.identifier == identifier]
        return found.standing.value

    def reason(self, identifier: str) -> str:
        [found] = [each for each in self.kept.values() if each.identifier == identifier]
        return found.reason

    def one(self, identifier: str) -> IndexedEntry:
        [found] = [each for each in self.kept.values() if each.identifier == identifier]
        return found

    @property
    def listed(self) -> set[str]:
        return {
            each.identifier for each in self.kept.values() if each.standing is EntryStanding.LISTED
        }


def _stored(source: Source) -> Source:
    return msgspec.json.decode(msgspec.json.encode(source), type=Source)
