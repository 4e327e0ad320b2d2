"""Crawled entries are stored in the databases, even when the crawler is killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.urls import open_index
from parley.registry.records import (
    Constraint,
    EntrySelection,
    IndexedEntry,
    Source,
    SourceKind,
    SourceState,
    Viewer,
)
from tests.kit.scripted_server import Exchange, card
from tests.kit.waiting import until
from tests.registry.ingest.sites import CATALOG, entry, reader, site, urn

pytestmark = pytest.mark.anyio

OPERATOR = Viewer(sees_all=True)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def index_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'registry.db'}"
    made: str = request.getfixturevalue("postgres_url")
    return made


@pytest.fixture
async def index(index_url: str) -> AsyncIterator[RegistryIndex]:
    made = open_index(index_url)
    await made.open()
    yield made
    await made.close()


async def one(index: RegistryIndex, name: str) -> IndexedEntry:
    found = await index.entry(urn(name), OPERATOR)
    assert found is not None, name
    return found


async def visit(reads: Any, url: str, kind: SourceKind = SourceKind.CATALOG) -> Source:
    """Visit a source as stored in the index."""
    await reads.index.add_sources([Source(url=url, kind=kind)])
    [source] = [each for each in await reads.index.sources() if each.url == url]
    ended: Source = await reads.crawler.visit(source)
    return ended


async def listed(index: RegistryIndex, **fields: str) -> int:
    constraints = tuple(Constraint(field=name, values=(v,)) for name, v in fields.items())
    return await index.count(EntrySelection(constraints=constraints))


class Meanwhile:
    """A site that changes the index while its card is fetched."""

    def __init__(self, web: Any, act: Callable[[], Any]) -> None:
        self.web = web
        self.act = act

    async def __call__(self, exchange: Exchange) -> None:
        await self.act()
        await exchange.json(card(self.web.url))


async def test_what_is_said_of_a_source_while_it_is_visited_stays(index: RegistryIndex) -> None:
    """The source's audience and its vouching operator change during the visit."""
    async with site() as web, reader(index=index) as reads:
        url = web.serve(entry("one", f"{web.url}/one.json"))
        web.headers[CATALOG] = {"etag": '"v1"'}

        async def say() -> None:
            [now] = await index.sources()
            changed = msgspec.structs.replace(now, settings={"audience": ["owner:me"]})
            await index.change_source(changed)

        web.pages["/one.json"] = Meanwhile(web, say)
        await visit(reads, url)
        [kept] = await index.sources()
        assert kept.settings == {"audience": ["owner:me"]}
        assert (kept.due_at, kept.etag, kept.state) == (0, "", SourceState.OK)
        await reads.crawler.visit(kept)
        assert (await one(index, "one")).audience == ("owner:me",)
        [kept] = await index.sources()
        assert kept.due_at > 0


async def test_a_claim_stays_while_somebody_else_changes_its_source(index: RegistryIndex) -> None:
    await index.add_sources([Source(url="https://a.example/", kind=SourceKind.SITE)])
    [claimed] = await index.claim_sources(1, 60)
    await index.change_source(msgspec.structs.replace(claimed, depth=1))
    assert await index.claim_sources(1, 60) == []
    assert await index.end_visit(claimed, claimed)
    [again] = await index.claim_sources(1, 60)
    assert again.depth == 1
    # A crawler that stops releases its claims, also when the visit was just stored.
    visited = msgspec.structs.replace(again, fetched_at=1, state=SourceState.OK, due_at=2**50)
    assert await index.end_visit(visited, again)
    assert await index.end_visit(msgspec.structs.replace(again, due_at=0), again)
    assert await index.sources() == [visited]


@pytest.mark.slow
async def test_a_crawl_that_is_killed_is_continued_by_another_process(index_url: str) -> None:
    """Stored entries stay; the claim expires, and another process visits the source."""
    count, held_at = 200, 120
    killed = asyncio.Event()

    def answer(number: int, url: str) -> Callable[[Exchange], Any]:
        async def one_card(exchange: Exchange) -> None:
            if number >= held_at and not killed.is_set():
                await exchange.never()
            await exchange.json({**card(url), "name": f"agent {number}"})

        return one_card

    async with site() as web:
        for n in range(count):
            web.pages[f"/{n}.json"] = answer(n, web.url)
        url = web.serve(*(entry(f"n{n}", f"{web.url}/{n}.json") for n in range(count)))
        index = open_index(index_url)
        await index.open()
        await index.add_sources([Source(url=url, kind=SourceKind.CATALOG)])
        await index.close()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.registry.ingest.crawl_process", index_url, "20"
        )
        try:
            await until(lambda: f"/{held_at}.json" in web.asked, 60)
        finally:
            process.kill()
            await process.wait()
        killed.set()
        index = open_index(index_url)
        await index.open()
        before = await listed(index)
        assert 1 <= before < count
        if not index_url.startswith("sqlite:"):  # a file has one process, whose claims end with it
            assert await index.claim_sources(1, 10) == []  # the claim of the dead process
        async with reader(index=index, poll_seconds=0.1) as reads:
            await reads.crawler.start()

            async def is_ended() -> bool:
                [source] = await index.sources()
                return source.state is SourceState.OK

            await until(is_ended, 60)

            async def is_listed() -> bool:
                return await listed(index) == count

            await until(is_listed, 60)
        [source] = await index.sources()
        assert source.entries == count
        await index.close()
