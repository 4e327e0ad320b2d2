"""A crawler process: ``python -m tests.registry.ingest.crawl_process <index> <lease>``."""

from __future__ import annotations

import asyncio
import sys

from parley.registry.index.urls import open_index
from parley.registry.ingest.crawler import Crawler
from parley.registry.ingest.examiner import Examiner
from parley.registry.ingest.fetching import IngestLimits, WebFetcher
from tests.registry.ingest.sites import HERE_ONLY


async def main(url: str, lease: float) -> None:
    index = open_index(url)
    await index.open()
    limits = IngestLimits(visit_seconds=lease * 0.9, lease_seconds=lease)
    fetcher = WebFetcher(HERE_ONLY, limits=limits)
    crawler = Crawler(index, Examiner(fetcher), fetcher, poll_seconds=0.1)
    await crawler.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
