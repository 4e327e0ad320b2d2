"""Visits a source: reads it, examines its entries, and says when it is visited again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from parley.model.catalog.entries import A2A_CARD_TYPES, CatalogHost
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.selections import Constraint, EntrySelection, Order, Viewer
from parley.registry.ingest.batches import BATCH, NOT_YET, ExaminedBatches
from parley.registry.ingest.cards import digest_of
from parley.registry.ingest.examiner import Examiner, is_catalog, one_form
from parley.registry.ingest.fetching import PageUnavailable, WebFetcher
from parley.registry.ingest.fields import SOURCE
from parley.registry.ingest.finding import CatalogFinder
from parley.registry.ingest.limits import IngestLimits
from parley.registry.ingest.reading import ListedEntry, read_whole
from parley.registry.ingest.site_sources import SiteSources
from parley.registry.records import (
    Authority,
    EntryStanding,
    IndexedEntry,
    Source,
    SourceKind,
    SourceState,
)
from parley.wire.catalog.entries import InvalidCatalog, InvalidEntry, read_entry

PARTIAL = "partial"
"""A member of ``Source.settings``: the last visit ended before all entries were examined."""

TRIES = "tries"
"""A member of ``Source.settings``: how many visits in a row left entries pending."""

MAX_REASON = 2_000
_OURS = (PARTIAL, TRIES)
_SOON = 1.0
_ALL = tuple(EntryStanding)


class SourceVisitor:
    """Visits sources of every kind, one at a time or several."""

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
        """Visit a source; return it with what was found, not stored yet.

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
        is_gone = error.status == 410 or failures >= self._limits.gone_after
        was_gone = source.state is SourceState.GONE
        reason = _bounded(str(error))
        if is_gone or was_gone:
            if not was_gone:
                words = f"its source is gone, after {failures} failures: {reason}"
                await self._index.withdraw(source.url, (), _bounded(words))
            state, wait = SourceState.GONE, self._limits.refresh_ceiling
        elif error.is_refused:
            state, wait = SourceState.REFUSED, self._limits.refresh_default
        else:
            state = SourceState.FAILED
            wait = self._limits.retry_after(failures, error.retry_after)
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
        await sources.announce(report.found)
        source = _with(source, await sources.store(is_whole=report.is_whole))
        ended = self._ended(source, SourceState.OK, self._limits.refresh_default)
        how = "; ".join(f"{each.url} ({each.how})" for each in report.found)
        return msgspec.structs.replace(ended, entries=len(report.found), reason=_bounded(how))

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
                retry_after=_retry_after(answer.headers),
            )
        source = msgspec.structs.replace(
            source,
            etag=answer.headers.get("etag", "")[:512],
            last_modified=answer.headers.get("last-modified", "")[:128],
        )
        return await self._read(source, work, answer.body, refresh, near=answer.url)

    async def _file(self, source: Source, work: ExaminedBatches) -> Source:
        """Read a catalog of the operator from a file."""
        if source.found_by:
            raise PageUnavailable(f"{source.url} is a file that another source names, and is not "
                                  "read", is_refused=True)  # fmt: skip
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

        ``near`` is what its addresses are relative to. Raises ``InvalidCatalog``.
        """
        sources = SiteSources(self._index, self._limits, source, self._fetcher.plain)
        share = self._limits.entries_per_site // self._limits.catalogs_per_site
        at_most = self._limits.entries_per_site
        reading = await asyncio.to_thread(
            read_whole, body, self._limits, depth=source.depth, at_most=at_most
        )
        # With no more than its share, a catalog is never what makes its site too large.
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
        await self._index.withdraw(source.url, keep, "its source does not have it any more")
        ended = self._ended(source, SourceState.OK, refresh, work)
        return msgspec.structs.replace(
            ended,
            entries=len(entries),
            reason=_bounded("; ".join([*reading.notes, *work.notes(len(entries))])),
        )

    async def _followed(self, sources: SiteSources, listed: ListedEntry, near: str) -> ListedEntry:
        """Return an entry with a whole address, and what is wrong with the catalog that it nests.

        A relative address means nothing to whoever finds the entry elsewhere.
        """
        url = listed.entry.url
        with suppress(ValueError):  # of what is no address, which its examination says
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
        """Examine the entries that the index has: their cards may have changed, unlike the source.

        A source that entries are pushed to is never read.
        """
        async for page in self._pages(source.url):
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
                    listed.append(ListedEntry(entry, _host_of(each), source.depth))
            if await work.examine(listed):
                break
        wait = self._limits.refresh_default if refresh is None else refresh
        ended = self._ended(source, SourceState.UNCHANGED, wait, work)
        return msgspec.structs.replace(ended, reason=_bounded("; ".join(work.notes(0))))

    async def _oldest_first(
        self, source: Source, entries: Iterable[ListedEntry]
    ) -> list[ListedEntry]:
        """Return entries with those first that were never examined, then those longest ago."""
        seen: dict[str, int] = {}
        async for page in self._pages(source.url):
            for each in page:
                seen[each.identifier] = 0 if each.reason == NOT_YET else each.seen_at
        return sorted(entries, key=lambda each: seen.get(each.identifier, 0))

    async def _pages(self, url: str) -> AsyncIterator[list[IndexedEntry]]:
        """Yield the entries of a source in the index, in pages."""
        selection = EntrySelection(
            viewer=Viewer(sees_all=True),
            constraints=(Constraint(field=SOURCE, values=(url,)),),
            standings=_ALL,
        )
        offset = 0
        while True:
            page = await self._index.browse(selection, (Order(field="identifier"),), BATCH, offset)
            ours = [each for each in page if each.source == url]
            if ours:
                yield ours
            if len(page) < BATCH:
                return
            offset += len(page)

    def _ended(
        self, source: Source, state: SourceState, wait: float, work: ExaminedBatches | None = None
    ) -> Source:
        """Return a source after a visit, to be visited again in so many seconds.

        It is sooner while there are entries that were never examined, or whose cards could not be
        had: then ever later, as after failures.
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


def _host_of(entry: IndexedEntry) -> CatalogHost | None:
    name = entry.fields.get("host.displayName", ())
    identifier = entry.fields.get("host.identifier", ("",))
    return CatalogHost(display_name=name[0], identifier=identifier[0]) if name else None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    from parley.model.retry_after import seconds_of

    return seconds_of(headers.get("retry-after"))


def _bounded(text: str) -> str:
    line = "".join(char if char.isprintable() else " " for char in text)
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 3]}..."
