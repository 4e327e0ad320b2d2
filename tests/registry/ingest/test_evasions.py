"""Attacks on pinned keys, and on the limits of an entry's own claims, fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from parley.registry.ingest.fetching import IngestLimits
from parley.registry.ingest.reading import read_whole
from parley.registry.ingest.sites import remove_source
from parley.registry.records import EntryStanding, SourceKind, SourceState, Trust
from tests.kit.scripted_server import Exchange, card
from tests.kit.waiting import until
from tests.registry.ingest.sites import CATALOG, HERE, catalog, entry, nested, reader, site, urn
from tests.registry.ingest.test_trust import Publisher

pytestmark = pytest.mark.anyio

MORE = "/more.json"


@pytest.fixture
async def publisher(anyio_backend: object) -> Any:
    async with site() as web, reader() as reads:
        yield Publisher(web, reads)


async def test_what_an_operator_accepted_elsewhere_stays_accepted(publisher: Publisher) -> None:
    await publisher.visit(publisher.signed())
    web, index = publisher.web, publisher.reads.index
    web.serve(nested("more", web.url + MORE))
    web.serve(entry("one", data=card(web.url)), path=MORE)
    await publisher.reads.visit(web.url + CATALOG)
    await publisher.reads.visit(web.url + MORE)
    held = index.kept[urn("one"), web.url + MORE]
    await index.decide(held.key, EntryStanding.LISTED, "", "operator")
    for name in ("Scripted agent", "Renamed"):
        web.serve(entry("one", data=card(web.url, name=name)), path=MORE)
        await publisher.reads.visit(web.url + MORE)
        assert index.kept[urn("one"), web.url + MORE].standing is EntryStanding.LISTED


async def test_an_entry_that_is_too_large_stays_so_while_its_catalog_is_unchanged() -> None:
    async with site() as web, reader(entry_bytes=2_000) as reads:
        large = {**web.serve_card("one"), "metadata": {"text": "x" * 4_000}}
        url = web.serve(large)
        web.headers[CATALOG] = {"etag": '"v1"'}
        await reads.visit(url)
        assert reads.index.standing(urn("one")) == "rejected"
        web.pages[CATALOG] = 304
        await reads.visit(url)
        assert reads.index.standing(urn("one")) == "rejected"
        assert "bytes" in reads.index.reason(urn("one"))


async def test_an_entry_whose_examination_failed_is_examined_whole_again(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest counts again, even if its catalog has not changed."""
    publisher.entry["trustManifest"] = {"identity": "https://elsewhere.example"}
    publisher.web.headers[CATALOG] = {"etag": '"v1"'}

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(publisher.reads.examiner._manifests, "check", broken)
        found = await publisher.visit(msgspec.json.encode(publisher.made))
    assert "RuntimeError" in found.reason
    publisher.web.pages[CATALOG] = 304
    await publisher.reads.visit(publisher.web.url + CATALOG)
    found = publisher.reads.index.one(urn("one"))
    assert found.trust is Trust.FAILED


async def test_the_catalogs_of_one_site_do_not_hold_up_those_of_others() -> None:
    async def never(exchange: Exchange) -> None:
        await exchange.never()

    async with site() as slow, site() as quick, reader(poll_seconds=0.05) as reads:
        slow.pages["*"] = never
        for n in range(8):
            await reads.add(f"{slow.url}/{n}.json", settings={"root": slow.url})
        url = quick.serve(quick.serve_card("one"))
        await reads.add(url)
        await reads.crawler.start()
        await until(lambda: reads.index.listed == {urn("one")})
        held = [each for each in reads.index.places.values() if each.due_at > reads.index.time]
        assert len(held) >= 6
        assert {each.state for each in held} == {SourceState.NEW, SourceState.OK}


async def test_entries_that_are_wrong_are_bounded_in_all_inline_catalogs_together() -> None:
    limits = IngestLimits(entries_per_catalog=10, entries_per_site=50)
    inline = {"specVersion": "1.0", "entries": [{}] * 10}
    whole = catalog(*(nested(f"n{n}", data=inline) for n in range(10)))
    reading = read_whole(msgspec.json.encode(whole), limits, depth=0, at_most=50)
    assert len(reading.rejected) == 40
    assert [bool(each.problem) for each in reading.entries] == [False] * 4 + [True] * 6
    assert "too many entries" in reading.notes[0]


@pytest.mark.parametrize("kind", [SourceKind.SITE, SourceKind.CATALOG])
async def test_who_sees_a_source_sees_the_catalogs_that_it_leads_to(kind: SourceKind) -> None:
    """A restricted source stays restricted in another catalog of the same site."""
    async with site() as web, reader() as reads:
        web.serve(web.serve_card("deep"), path="/deep.json")
        inner = web.serve(nested("deep", "/deep.json"), web.serve_card("inner"), path=MORE)
        url = web.serve(web.serve_card("one"), nested("more", MORE))
        named = web.url + "/" if kind is SourceKind.SITE else url
        # The inner catalog is already known, from a public source.
        await reads.add(inner, found_by="https://elsewhere.example/")
        await reads.add(named, kind, settings={"audience": ["owner:me"]})
        await reads.visit_all()
        assert reads.index.one(urn("one")).audience == ("owner:me",)
        await reads.visit_all()
    seen = {each.identifier: each.audience for each in reads.index.kept.values()}
    assert set(seen.values()) == {("owner:me",)}
    assert urn("deep") in seen


async def test_a_source_that_is_removed_takes_the_catalogs_along_that_it_led_to() -> None:
    async with site() as web, reader() as reads:
        web.serve(web.serve_card("deep"), path="/deep.json")
        web.serve(nested("deep", "/deep.json"), web.serve_card("inner"), path=MORE)
        web.serve(web.serve_card("one"), nested("more", MORE))
        url = (await reads.add(f"{web.url}/other.json", due_at=2**60)).url
        await reads.add(web.url + "/", SourceKind.SITE)
        await reads.visit_all()
        assert urn("deep") in reads.index.listed
        shared = await reads.add(f"{web.url}/shared.json", found_by=web.url + CATALOG)
        others = {"domains": {web.url + CATALOG: [HERE], url: [HERE]}}
        await reads.index.change_source(msgspec.structs.replace(shared, settings=others))
        assert await remove_source(reads.index, web.url + "/")
        assert reads.index.places.keys() == {url, shared.url}
        assert reads.index.places[shared.url].found_by == url
        assert await remove_source(reads.index, url)
        assert not await remove_source(reads.index, url)
    assert reads.index.listed == set()
    assert reads.index.places == {}
