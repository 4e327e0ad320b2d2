"""Crawls: claims the sources that are due, visits them, and continues what others left."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import msgspec

from parley.database.errors import StoreUnavailable
from parley.model.concurrency import Periodic
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.examiner import Examiner
from parley.registry.ingest.fetching import PageUnavailable, WebFetcher
from parley.registry.ingest.finding import CatalogFinder
from parley.registry.ingest.limits import IngestLimits
from parley.registry.ingest.names import DnsNames
from parley.registry.ingest.site_sources import remove_source, root_of
from parley.registry.ingest.visits import SourceVisitor
from parley.registry.records import Source

log = logging.getLogger("parley.registry")

VISITORS = 4
POLL_SECONDS = 5.0
STOP_SECONDS = 5.0

SITE_SECONDS = 10.0
"""How much later a source is visited while half of the visitors are at its site."""


class Crawler:
    """Visits the sources of an index as they become due, ``visitors`` of them at a time.

    At most half of them are at the catalogs of one site: slow ones do not hold up those of others.
    Each visit is claimed for ``limits.lease_seconds``: when a process is killed, another one makes
    its visits then. Without ``names`` no DNS is asked for catalogs.
    """

    def __init__(
        self,
        index: RegistryIndex,
        examiner: Examiner,
        fetcher: WebFetcher,
        *,
        names: DnsNames | None = None,
        limits: IngestLimits | None = None,
        visitors: int = VISITORS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        if visitors < 1:
            raise ValueError(f"a crawler has one visitor at least, not {visitors}")
        self._index = index
        self._limits = limits or fetcher.limits
        finder = CatalogFinder(fetcher, names=names, limits=self._limits)
        self._visitor = SourceVisitor(index, examiner, fetcher, finder, self._limits)
        self._visitors = visitors
        self._poll_seconds = poll_seconds
        self._visiting: dict[asyncio.Task[None], Source] = {}
        self._claims = Periodic(
            "claiming sources", self._step, poll_seconds, log=log, expected=StoreUnavailable
        )
        self.visits = 0

    async def start(self) -> None:
        """Begin to visit sources. Idempotent."""
        self._claims.start()

    async def stop(self) -> None:
        """End all visits, and leave their sources to others. Idempotent."""
        await self._claims.stop()
        visiting = dict(self._visiting)
        for each in visiting:
            each.cancel()
        await asyncio.gather(*visiting, return_exceptions=True)
        now = self._index.now()
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                for each, source in visiting.items():
                    if each.cancelled():
                        await self._end(msgspec.structs.replace(source, due_at=now), source)

    async def visit(self, source: Source) -> Source:
        """Visit a source now, and store what was found; return it as it is stored.

        Raises ``StoreUnavailable``.
        """
        self.visits += 1
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
        if ended.reason and ended.state not in (source.state, "ok", "unchanged"):
            log.warning("the source %.200s is %s: %.500s", ended.url, ended.state, ended.reason)
        return ended

    async def _end(self, ended: Source, began: Source) -> None:
        """Store a source after its visit. If it was removed meanwhile, what it had goes too."""
        if not await self._index.end_visit(ended, began):
            await self._index.withdraw(ended.url, (), "its source was removed")
            await remove_source(self._index, ended.url)

    async def _step(self) -> bool:
        """Begin visits; return whether to look for more at once."""
        is_found = await self._claim()
        if self._visiting and not (is_found and len(self._visiting) < self._visitors):
            await asyncio.wait(
                self._visiting, timeout=self._poll_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            return True
        return is_found

    async def _claim(self) -> bool:
        """Begin the visits of sources that are due; return whether there was one."""
        free = self._visitors - len(self._visiting)
        if free <= 0:
            return False
        claimed = await self._index.claim_sources(free, self._limits.lease_seconds)
        for source in claimed:
            of_site = sum(root_of(each) == root_of(source) for each in self._visiting.values())
            if of_site >= max(1, self._visitors // 2):
                later = self._index.now() + round(SITE_SECONDS * 1000)
                await self._end(msgspec.structs.replace(source, due_at=later), source)
                continue
            task = asyncio.create_task(self._visit(source), name=f"parley-visit {source.url[:80]}")
            self._visiting[task] = source
            task.add_done_callback(self._ended)
        return bool(claimed)

    async def _visit(self, source: Source) -> None:
        try:
            await self.visit(source)
        except StoreUnavailable as error:
            log.warning("the visit of %.200s could not be stored: %s", source.url, error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._visiting.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the visit of a source failed", exc_info=error)
