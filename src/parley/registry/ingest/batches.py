"""The entries of one visit: examined a few at a time, and put into the index in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from parley.database.errors import StoreUnavailable
from parley.model.catalog.entries import CatalogEntry
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.authority import AUDIENCE, authority_of, domains_of
from parley.registry.ingest.examiner import Examiner, one_form, rejected
from parley.registry.ingest.limits import IngestLimits
from parley.registry.ingest.reading import CatalogReading, ListedEntry
from parley.registry.records import (
    Authority,
    EntryDraft,
    EntryStanding,
    IndexedEntry,
    Source,
    SourceKind,
)
from parley.wire.catalog.entries import RejectedEntry

log = logging.getLogger("parley.registry")

BATCH = 50
"""How many entries are put into the index at once, and at most are lost when a crawl is killed."""

AT_ONCE = 8
"""How many entries of a source are examined at once."""

ENTRY_SECONDS = 60.0
NOT_YET = "its card has not been read yet"


class ExaminedBatches:
    """The entries of one visit, examined a few at a time and put into the index in batches."""

    def __init__(
        self, index: RegistryIndex, examiner: Examiner, limits: IngestLimits, source: Source
    ) -> None:
        self._index = index
        self._examiner = examiner
        self._source = source
        self._authority = authority_of(source)
        self._domains = domains_of(source)
        visit_seconds = limits.visit_seconds
        self._entry_seconds = min(ENTRY_SECONDS, visit_seconds / 2)
        now = asyncio.get_running_loop().time()
        self._until = now + visit_seconds - self._entry_seconds
        self._pushed: dict[str, tuple[int, EntryStanding]] = {}
        self._wrong = 0
        self._first_wrong = ""
        self.left = 0
        self.unread = 0
        self.pending = 0

    async def reject(self, reading: CatalogReading) -> None:
        """Put the entries that cannot be read, with their reasons."""
        known = {each.identifier for each in reading.entries}
        drafts: dict[str, EntryDraft] = {}
        for each in reading.rejected:
            self._note(each.reason)
            name = one_form(each.identifier)
            if name and name not in known:
                # With the keys that it is pinned to: it may come back.
                drafts[name] = self._unreadable(each, *await self._known(name))
        listed = list(drafts.values())
        for begin in range(0, len(listed), BATCH):
            await self._put(listed[begin : begin + BATCH])

    async def examine(self, entries: Sequence[ListedEntry]) -> int:
        """Examine entries while there is time, and put them; return how many are left in all.

        ``unread`` are those that were never examined, ``pending`` those without a card for now.
        """
        for begin in range(0, len(entries), BATCH):
            batch = entries[begin : begin + BATCH]
            await self._put(await self._examined(batch))
        return self.left

    async def _put(self, drafts: Sequence[EntryDraft]) -> None:
        """Put entries. One that the index cannot hold keeps no other one out.

        What its owner or an operator did to a pushed one while its card was read stays.
        """
        drafts = [each for each in drafts if await self._is_as_it_was(each.identifier)]
        if not drafts:
            return
        try:
            await self._index.put(drafts)
        except ValueError as error:
            if len(drafts) == 1:
                log.warning("an entry of %.200s cannot be kept: %s", self._source.url, error)
                self._note(f"cannot be kept: {error}")
                return
            for each in drafts:
                await self._put([each])

    async def _is_as_it_was(self, identifier: str) -> bool:
        state = self._pushed.pop(identifier, None)
        if state is None:
            return True
        known = await self._index.entries_of(identifier)
        now = [(each.change, each.standing) for each in known if each.source == self._source.url]
        return state in now

    async def _examined(self, batch: Sequence[ListedEntry]) -> list[EntryDraft]:
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(listed: ListedEntry) -> EntryDraft | None:
            async with turns:
                if asyncio.get_running_loop().time() < self._until:
                    return await self._one(listed)
                return await self._later(listed)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(each)) for each in batch]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        drafts = [draft for task in tasks if (draft := task.result()) is not None]
        for each in drafts:
            self.pending += each.standing is EntryStanding.PENDING
            if each.standing is EntryStanding.REJECTED:
                self._note(f"{each.identifier[:100]}: {each.reason}")
        return drafts

    async def _one(self, listed: ListedEntry) -> EntryDraft | None:
        before, elsewhere = await self._known(listed.identifier)
        source = self._source
        if listed.problem:
            return rejected(listed.entry, source.url, listed.problem, before, elsewhere)
        is_pushed = source.kind is SourceKind.PUSH and before is not None
        authority = before.authority if is_pushed and before else self._authority
        if is_pushed and before:
            self._pushed[before.identifier] = (before.change, before.standing)
        if source.kind is SourceKind.FILE:
            authority = Authority.OPERATOR
        try:
            async with asyncio.timeout(self._entry_seconds):
                return await self._examiner.examine(
                    listed.entry,
                    source=source.url,
                    authority=authority,
                    owner=before.owner if before else "",
                    audience=before.audience if is_pushed and before else _audience(source),
                    before=before,
                    elsewhere=elsewhere,
                    domains=self._domains,
                    host=listed.host,
                )
        except TimeoutError:
            return await self._later(listed)
        except StoreUnavailable:
            raise
        except Exception as error:
            log.exception("the entry %.200s of %.200s", listed.identifier, source.url)
            words = f"its examination failed: {type(error).__name__}, see the log of the registry"
            return rejected(listed.entry, source.url, words, before, elsewhere)

    async def _later(self, listed: ListedEntry) -> EntryDraft | None:
        """Return the draft of an entry that the next visit examines; none if the index has it."""
        before, elsewhere = await self._known(listed.identifier)
        self.left += 1
        self.unread += before is None or before.reason == NOT_YET
        if before is not None:
            return None
        words = listed.problem or NOT_YET
        draft = rejected(listed.entry, self._source.url, words, None, elsewhere)
        standing = EntryStanding.REJECTED if listed.problem else EntryStanding.PENDING
        return msgspec.structs.replace(draft, standing=standing)

    async def _known(self, identifier: str) -> tuple[IndexedEntry | None, list[IndexedEntry]]:
        """Return the entry of an identifier that this source had, and those of other sources."""
        known = await self._index.entries_of(identifier)
        own = next((each for each in known if each.source == self._source.url), None)
        return own, [each for each in known if each is not own]

    def _unreadable(
        self, wrong: RejectedEntry, before: IndexedEntry | None, elsewhere: list[IndexedEntry]
    ) -> EntryDraft:
        entry = CatalogEntry(identifier=wrong.identifier, display_name="", type="", data={})
        return rejected(entry, self._source.url, wrong.reason, before, elsewhere)

    def _note(self, reason: str) -> None:
        self._wrong += 1
        self._first_wrong = self._first_wrong or reason

    def notes(self, total: int) -> list[str]:
        """Return what the operator should know of the entries."""
        found = []
        if self._wrong:
            of_all = f" of {total}" if total else ""
            found.append(f"{self._wrong}{of_all} entries are rejected, one of them: "
                         f"{self._first_wrong}")  # fmt: skip
        if self.left:
            found.append(f"{self.left} entries are left for the next visit")
        return found


def _audience(source: Source) -> tuple[str, ...]:
    """Return who sees the entries of a source, as the operator set it."""
    given = source.settings.get(AUDIENCE)
    return tuple(each for each in given if isinstance(each, str)) if given else ()
