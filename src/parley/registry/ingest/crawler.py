"""The crawler: claims due sources, visits them, and continues visits of killed processes.

A visit reads a source, examines its entries a few at a time, puts them into the index in batches,
and schedules the next visit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from parley.database.errors import StoreUnavailable
from parley.model.backoff import seconds_of
from parley.model.bounded import Bounded
from parley.model.concurrency import Periodic
from parley.registry.catalog.entries import A2A_CARD_TYPES, CatalogEntry, one_line
from parley.registry.catalog.reading import InvalidCatalog, InvalidEntry, read_entry
from parley.registry.claims import ClaimedWork
from parley.registry.index.prepared import digest_of
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.addresses import AUDIENCE, DnsNames, authority_of, domains_of
from parley.registry.ingest.examiner import (
    NOT_YET,
    Examiner,
    RefusalLog,
    SourceExamination,
    rejected,
)
from parley.registry.ingest.fetching import IngestLimits, PageUnavailable, WebFetcher
from parley.registry.ingest.reading import (
    CatalogReading,
    ListedEntry,
    host_known,
    is_catalog,
    one_form,
    pages_of,
    read_whole,
)
from parley.registry.ingest.sites import (
    MARKUP,
    CatalogFinder,
    SiteSources,
    entries_of_page,
    remove_source,
    root_of,
)
from parley.registry.records import (
    Authority,
    EntryDraft,
    EntryStanding,
    IndexedEntry,
    Source,
    SourceKind,
    SourceState,
)

# The entries of one visit: examined a few at a time, and put into the index in batches.

BATCH = 50
"""The number of entries put into the index at once, and the most that a killed crawl can lose."""

ENTRY_SECONDS = 60.0


class ExaminedBatches:
    """The entries of one visit, examined a few at a time and put into the index in batches."""

    def __init__(
        self, index: RegistryIndex, examiner: Examiner, limits: IngestLimits, source: Source
    ) -> None:
        self._index = index
        self._source = source
        self._domains = domains_of(source)
        seconds = min(ENTRY_SECONDS, limits.visit_seconds / 2)
        self._examination = SourceExamination(
            index, examiner, source.url, limits.visit_seconds - seconds, seconds
        )
        self._fresh = REFRESH in source.settings
        self._refusals = RefusalLog(source.url)
        self._pushed: dict[str, tuple[int, EntryStanding]] = {}
        self._wrong = 0
        self._first_wrong = ""
        self.left = 0
        self.unread = 0
        self.pending = 0

    async def reject(self, reading: CatalogReading) -> None:
        """Put the invalid entries, with their reasons."""
        known = {each.identifier for each in reading.entries}
        drafts: dict[str, EntryDraft] = {}
        for each in reading.rejected:
            self._note(each.reason)
            name = one_form(each.identifier)
            if name and name not in known:
                # Keep the pinned keys: the entry may become valid again.
                before, elsewhere = await self._examination.known(name)
                entry = CatalogEntry(identifier=each.identifier, display_name="", type="", data={})
                draft = rejected(entry, self._source.url, each.reason, before, elsewhere)
                drafts[name] = draft
                self._refusals.tell(name, draft.standing, draft.reason, before)
            else:
                self._refusals.tell(name or "an entry", "rejected", each.reason, None)
        listed = list(drafts.values())
        for begin in range(0, len(listed), BATCH):
            await self._put(listed[begin : begin + BATCH])

    async def examine(self, entries: Sequence[ListedEntry]) -> int:
        """Examine entries while there is time, and put them; return how many are left.

        ``unread`` counts entries that were never examined, ``pending`` entries whose card is
        unavailable.
        """
        for begin in range(0, len(entries), BATCH):
            batch = entries[begin : begin + BATCH]
            drafts = await self._examination.of_all(batch, self._examined)
            for each in drafts:
                self.pending += each.standing is EntryStanding.PENDING
                if each.standing is EntryStanding.REJECTED:
                    self._note(f"{each.identifier[:100]}: {each.reason}")
            await self._put(drafts)
        self._refusals.end()
        return self.left

    async def _put(self, drafts: Sequence[EntryDraft]) -> None:
        """Put entries. An entry that the index rejects does not affect the others.

        Changes of a published entry by its owner or an operator while its card was read are kept.
        """
        drafts = [each for each in drafts if await self._is_as_it_was(each.identifier)]
        if not drafts:
            return
        try:
            await self._index.put(drafts)
        except ValueError as error:
            if len(drafts) == 1:
                log.warning("an entry of %.200s cannot be stored: %s", self._source.url, error)
                self._note(f"cannot be stored: {error}")
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

    async def _examined(self, listed: ListedEntry) -> EntryDraft | None:
        """Return the draft of an entry; ``None`` for an indexed entry, if the time is over."""
        before, elsewhere = await self._examination.known(listed.identifier)
        if listed.problem:
            url = self._source.url
            draft: EntryDraft | None = rejected(
                listed.entry, url, listed.problem, before, elsewhere
            )
        else:
            draft = await self._examination.one(
                listed, before, elsewhere, **self._terms(before), fresh=self._fresh
            )
        if draft is not None:
            self._refusals.tell(draft.identifier, draft.standing, draft.reason, before)
            return draft
        self.left += 1
        self.unread += before is None or before.reason == NOT_YET
        return self._examination.pending(listed, elsewhere) if before is None else None

    def _terms(self, before: IndexedEntry | None) -> dict[str, Any]:
        """Return the owner and the audience of an entry, for a published entry as its owner set
        them.
        """
        found: dict[str, Any] = {
            "domains": self._domains,
            "authority": authority_of(self._source),
            "owner": before.owner if before else "",
            "audience": _audience(self._source),
        }
        if self._source.kind is SourceKind.FILE:
            found["authority"] = Authority.OPERATOR
        elif self._source.kind is SourceKind.PUSH and before:
            self._pushed[before.identifier] = (before.change, before.standing)
            found |= {"authority": before.authority, "audience": before.audience}
        return found

    def _note(self, reason: str) -> None:
        self._wrong += 1
        self._first_wrong = self._first_wrong or reason

    def notes(self, total: int) -> list[str]:
        """Return a note on the entries for the operator."""
        found = []
        if self._wrong:
            of_all = f" of {total}" if total else ""
            found.append(f"{self._wrong}{of_all} entries are rejected, for example:  "
                         f"{self._first_wrong}")  # fmt: skip
        if self.left:
            found.append(f"{self.left} entries are left for the next visit")
        return found


def _audience(source: Source) -> tuple[str, ...]:
    """Return the audience of a source's entries, as the operator set it."""
    given = source.settings.get(AUDIENCE)
    return tuple(each for each in given if isinstance(each, str)) if given else ()


# Visits a source: reads it, examines its entries, and schedules the next visit.

PARTIAL = "partial"
"""A member of ``Source.settings``: the last visit ended before all entries were examined."""

TRIES = "tries"
"""A member of ``Source.settings``: how many visits in succession left entries pending."""

REFRESH = "refresh"
"""A member of ``Source.settings``: an operator requested a new visit, with all cards."""

MAX_REASON = 2_000
_OURS = (PARTIAL, TRIES, REFRESH)
_SOON = 1.0


class SourceVisitor:
    """Visits sources of every kind, several at a time."""

    def __init__(
        self,
        index: RegistryIndex,
        examiner: Examiner,
        fetcher: WebFetcher,
        finder: CatalogFinder,
        limits: IngestLimits,
    ) -> None:
        self._index = index
        self._examiner = examiner
        self._fetcher = fetcher
        self._finder = finder
        self._limits = limits

    async def visit(self, source: Source) -> Source:
        """Visit a source; return it with the findings, not stored yet.

        Raises ``StoreUnavailable``.
        """
        work = ExaminedBatches(self._index, self._examiner, self._limits, source)
        try:
            if source.kind is SourceKind.SITE:
                return await self._site(source)
            if source.kind is SourceKind.CATALOG:
                return await self._catalog(source, work)
            if source.kind is SourceKind.FILE:
                return await self._file(source, work)
            if source.kind is SourceKind.PUSH:
                return await self._kept(source, work)
        except PageUnavailable as error:
            return await self.failed(source, error)
        except InvalidCatalog as error:
            return await self.failed(source, PageUnavailable(f"{source.url}: {error}", status=200))
        return self._ended(source, SourceState.UNCHANGED, self._limits.refresh_ceiling)

    async def failed(self, source: Source, error: PageUnavailable) -> Source:
        """Return a source whose visit failed; after too many failures it is gone."""
        failures = source.failures + 1
        is_unread = not source.entries and not source.found_by
        is_gone = error.status == 410 or (failures >= self._limits.gone_after and not is_unread)
        was_gone = source.state is SourceState.GONE
        reason = one_line(str(error), MAX_REASON)
        if is_gone or was_gone:
            if not was_gone:
                words = f"its source is gone, after {failures} failures: {reason}"
                await self._index.withdraw(source.url, (), one_line(words, MAX_REASON))
            state, wait = SourceState.GONE, self._limits.refresh_ceiling
        elif error.is_refused:
            state, wait = SourceState.REFUSED, self._limits.refresh_default
        else:
            state = SourceState.FAILED
            wait = self._limits.retry_after(failures, error.retry_after, is_unread=is_unread)
        ended = self._ended(source, state, wait)
        return msgspec.structs.replace(ended, failures=failures, reason=reason)

    async def _site(self, source: Source) -> Source:
        report = await self._finder.find(source.url)
        if not report.found:
            words = f"no catalog of {source.url}: {'; '.join(report.notes)}"
            raise PageUnavailable(
                words, is_refused=report.is_refused, retry_after=report.retry_after
            )
        sources = SiteSources(self._index, self._limits, source, self._fetcher.plain)
        sources.announce(report.found)
        source = _with(source, await sources.store(is_whole=report.is_whole))
        ended = self._ended(source, SourceState.OK, self._limits.refresh_default)
        how = "; ".join(f"{each.url} ({each.how})" for each in report.found)
        return msgspec.structs.replace(
            ended, entries=len(report.found), reason=one_line(how, MAX_REASON)
        )

    async def _catalog(self, source: Source, work: ExaminedBatches) -> Source:
        robots = await self._finder.robots.of(source.url)
        if not robots.allows_catalog(source.url):
            words = f"robots.txt disallows {source.url} for this registry"
            raise PageUnavailable(words, is_refused=True)
        answer = await self._fetcher.get(
            source.url, etag=source.etag, last_modified=source.last_modified
        )
        refresh = self._limits.refresh_after(answer.headers)
        if answer.status == 304:
            return await self._kept(source, work, refresh)
        if answer.status != 200:
            raise PageUnavailable(
                f"{source.url} answered {answer.status}",
                status=answer.status,
                retry_after=seconds_of(answer.headers.get("retry-after")),
            )
        source = msgspec.structs.replace(
            source,
            etag=answer.headers.get("etag", "")[:512],
            last_modified=answer.headers.get("last-modified", "")[:128],
        )
        body = answer.body
        if source.url.endswith(MARKUP):
            body = msgspec.json.encode({"entries": entries_of_page(body)})
        return await self._read(source, work, body, refresh, near=answer.url)

    async def _file(self, source: Source, work: ExaminedBatches) -> Source:
        """Read a catalog file of the operator."""
        if source.found_by:
            raise PageUnavailable(f"{source.url} is a file named by another source, which is not "
                                  "allowed", is_refused=True)  # fmt: skip
        path = Path(unquote(urlsplit(source.url).path) if "://" in source.url else source.url)
        limit = self._limits.catalog_bytes

        def read() -> bytes:
            with path.open("rb") as file:
                return file.read(limit + 1)

        try:
            body = await asyncio.to_thread(read)
        except OSError as error:
            raise PageUnavailable(f"{path} cannot be read: {error.strerror}") from None
        if len(body) > limit:
            raise PageUnavailable(f"{path} is larger than {limit:,} bytes", status=200)
        digest = digest_of(body)
        if digest == source.etag and not source.settings.get(PARTIAL):
            return await self._kept(source, work, self._limits.refresh_floor)
        source = msgspec.structs.replace(source, etag=digest)
        return await self._read(source, work, body, self._limits.refresh_floor)

    async def _read(
        self, source: Source, work: ExaminedBatches, body: bytes, refresh: float, *, near: str = ""
    ) -> Source:
        """Examine the entries of a catalog, and store them and its nested catalogs.

        ``near`` is the base of its relative addresses. Raises ``InvalidCatalog``.
        """
        sources = SiteSources(self._index, self._limits, source, self._fetcher.plain)
        share = self._limits.entries_per_site // self._limits.catalogs_per_site
        at_most = self._limits.entries_per_site
        reading = await asyncio.to_thread(
            read_whole, body, self._limits, depth=source.depth, at_most=at_most
        )
        # A catalog within its share cannot push its site over the limit.
        if len(reading.entries) > share and (left := await sources.entries_left()) < at_most:
            reading = await asyncio.to_thread(
                read_whole, body, self._limits, depth=source.depth, at_most=left
            )
        entries = [
            await self._followed(sources, each, near or source.url) for each in reading.entries
        ]
        source = _with(source, await sources.store(is_whole=not reading.notes))
        if source.settings.get(PARTIAL):
            entries = await self._oldest_first(source, entries)
        await work.reject(reading)
        await work.examine(entries)
        keep = [each.identifier for each in entries]
        keep += [one_form(each.identifier) for each in reading.rejected if each.identifier]
        await self._index.withdraw(source.url, keep, "its source no longer has it")
        ended = self._ended(source, SourceState.OK, refresh, work)
        return msgspec.structs.replace(
            ended,
            entries=len(entries),
            reason=one_line("; ".join([*reading.notes, *work.notes(len(entries))]), MAX_REASON),
        )

    async def _followed(self, sources: SiteSources, listed: ListedEntry, near: str) -> ListedEntry:
        """Return an entry with an absolute address, and the problem of the catalog that it nests.

        A relative address is useless to clients that find the entry in the registry.
        """
        url = listed.entry.url
        with suppress(ValueError):  # an invalid address is reported by the examination
            if url and not urlsplit(url).scheme:
                whole = msgspec.structs.replace(listed.entry, url=urljoin(near, url))
                listed = msgspec.structs.replace(listed, entry=whole)
        if listed.problem or not is_catalog(listed.entry.type) or not listed.entry.url:
            return listed
        problem = await sources.nest(listed.entry.url, listed.depth, near)
        return msgspec.structs.replace(listed, problem=problem)

    async def _kept(
        self, source: Source, work: ExaminedBatches, refresh: float | None = None
    ) -> Source:
        """Examine the indexed entries: their cards may have changed although the source has not.

        A source of published entries is never read.
        """
        async for page in pages_of(self._index, source.url):
            listed = []
            for each in page:
                if each.standing is EntryStanding.WITHDRAWN or each.type not in A2A_CARD_TYPES:
                    continue
                if source.kind is SourceKind.PUSH and each.authority is Authority.NONE:
                    continue
                try:
                    entry = read_entry(each.entry)
                except InvalidEntry:
                    continue
                if entry.url:
                    listed.append(ListedEntry(entry, host_known(each), source.depth))
            if await work.examine(listed):
                break
        wait = self._limits.refresh_default if refresh is None else refresh
        ended = self._ended(source, SourceState.UNCHANGED, wait, work)
        return msgspec.structs.replace(ended, reason=one_line("; ".join(work.notes(0)), MAX_REASON))

    async def _oldest_first(
        self, source: Source, entries: Iterable[ListedEntry]
    ) -> list[ListedEntry]:
        """Return entries in the order of their last examination, the never examined first."""
        seen: dict[str, int] = {}
        async for page in pages_of(self._index, source.url):
            for each in page:
                seen[each.identifier] = 0 if each.reason == NOT_YET else each.seen_at
        return sorted(entries, key=lambda each: seen.get(each.identifier, 0))

    def _ended(
        self, source: Source, state: SourceState, wait: float, work: ExaminedBatches | None = None
    ) -> Source:
        """Return a source after a visit, with the next visit in ``wait`` seconds.

        The next visit is sooner while entries were never examined or their cards are unavailable;
        for unavailable cards the delay grows as after failures.
        """
        now = self._index.now()
        settings = {name: each for name, each in source.settings.items() if name not in _OURS}
        is_partial = work is not None and work.left > 0
        if is_partial:
            settings[PARTIAL] = True
        if work is not None and work.unread:
            wait = _SOON
        elif work is not None and work.pending:
            tries = source.settings.get(TRIES, 0)
            settings[TRIES] = tries = (tries if isinstance(tries, int) else 0) + 1
            wait = min(wait, self._limits.retry_after(tries))
        return msgspec.structs.replace(
            source,
            state=state,
            reason="",
            failures=0,
            etag="" if is_partial else source.etag,
            last_modified="" if is_partial else source.last_modified,
            fetched_at=now,
            due_at=now + int(wait * 1000),
            settings=settings,
        )


def _with(source: Source, settings: Mapping[str, Any]) -> Source:
    if not settings:
        return source
    return msgspec.structs.replace(source, settings={**source.settings, **settings})


log = logging.getLogger("parley.registry")

VISITORS = 4
MAX_LOGGED = 10_000
"""For how many sources the last logged state is remembered."""

POLL_SECONDS = 5.0
STOP_SECONDS = 5.0

SITE_SECONDS = 10.0
"""The delay of a visit while half of the visitors are at its site, in seconds."""


class Crawler:
    """Visits the sources of an index when they are due, with up to ``visitors`` concurrent visits.

    At most half of the visits are at catalogs of one site, so that a slow site does not delay
    others. A visit is claimed for ``limits.lease_seconds``, and the claim is renewed while it runs:
    when a process is killed, another process takes its visits. Without ``names`` DNS is not used to
    find catalogs.
    """

    def __init__(
        self,
        index: RegistryIndex,
        examiner: Examiner,
        fetcher: WebFetcher,
        *,
        names: DnsNames | None = None,
        visitors: int = VISITORS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        if visitors < 1:
            raise ValueError(f"a crawler needs at least one visitor, not {visitors}")
        self._index = index
        self._limits = fetcher.limits
        finder = CatalogFinder(fetcher, names=names)
        self._visitor = SourceVisitor(index, examiner, fetcher, finder, self._limits)
        self._visitors = visitors
        self._visits = ClaimedWork(
            partial(index.claim_sources, lease=self._limits.lease_seconds),
            self._admit,
            self.visit,
            lambda source: f"the visit of {source.url:.200}",
            most=visitors,
            seconds=poll_seconds,
        )
        self._renewals = Periodic(
            "renewing the claims of sources",
            self._renew,
            self._limits.lease_seconds / 3,
            log=log,
            expected=StoreUnavailable,
            waits_first=True,
        )
        self._logged: Bounded[str, SourceState] = Bounded(MAX_LOGGED)

    async def start(self) -> None:
        """Start visiting sources. Idempotent."""
        self._visits.start()
        self._renewals.start()

    async def stop(self) -> None:
        """Stop all visits, and release their sources. Idempotent."""
        cancelled = await self._visits.stop()
        await self._renewals.stop()
        now = self._index.now()
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                for source in cancelled:
                    await self._end(msgspec.structs.replace(source, due_at=now), source)

    async def visit(self, source: Source) -> Source:
        """Visit a source now, and store the findings; return the stored source.

        Raises ``StoreUnavailable``.
        """
        try:
            async with asyncio.timeout(self._limits.visit_seconds):
                ended = await self._visitor.visit(source)
        except TimeoutError:
            words = f"its visit took longer than {self._limits.visit_seconds:g} seconds"
            ended = await self._visitor.failed(source, PageUnavailable(words))
        except StoreUnavailable:
            raise
        except Exception as error:
            log.exception("the visit of %.200s failed", source.url)
            words = f"its visit failed: {type(error).__name__}, see the log"
            ended = await self._visitor.failed(source, PageUnavailable(words))
        await self._end(ended, source)
        self._log_change(ended)
        return ended

    def _log_change(self, ended: Source) -> None:
        """Log that a source is not read, once for each state, and that it is read again."""
        if ended.state in (SourceState.OK, SourceState.UNCHANGED):
            if self._logged.pop(ended.url, None) is not None:
                log.info("the source %.200s is read again", ended.url)
        elif self._logged.get(ended.url) is not ended.state:
            self._logged[ended.url] = ended.state
            log.warning("the source %.200s is %s: %.500s", ended.url, ended.state, ended.reason)

    async def begin_due(self) -> None:
        """Start visits of due sources now, without waiting for the next poll."""
        await self._visits.begin()

    async def _renew(self) -> None:
        urls = [each.url for each in self._visits.running.values()]
        if urls:
            await self._index.renew_sources(urls, self._limits.lease_seconds)

    async def _end(self, ended: Source, began: Source) -> None:
        """Store a source after its visit. If it was removed meanwhile, withdraw its entries."""
        if not await self._index.end_visit(ended, began):
            await self._index.withdraw(ended.url, (), "its source was removed")
            await remove_source(self._index, ended.url)

    async def _admit(self, source: Source) -> bool:
        """Return whether a source is visited now: at most half of the visitors may be
        at its site.
        """
        visited = map(root_of, self._visits.running.values())
        if list(visited).count(root_of(source)) < max(1, self._visitors // 2):
            return True
        later = self._index.now() + round(SITE_SECONDS * 1000)
        await self._end(msgspec.structs.replace(source, due_at=later), source)
        return False
