"""Sources are visited by one process at a time, when they are due."""

from __future__ import annotations

import msgspec
import pytest

from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import Source, SourceKind, SourceState
from tests.registry.index.conftest import Clock
from tests.registry.index.making import CATALOG, draft, listed, standings

pytestmark = pytest.mark.anyio


def source(name: str, **changes: object) -> Source:
    values: dict[str, object] = {"url": f"https://{name}.example/", "kind": SourceKind.CATALOG}
    return Source(**{**values, **changes})  # type: ignore[arg-type]


async def test_sources_are_added_once(index: RegistryIndex) -> None:
    first = source("a", found_by="https://b.example/", depth=2, settings={"interval": 60})
    assert await index.add_sources([first, source("b")]) == 2
    assert await index.add_sources([source("a", kind=SourceKind.SITE), source("c")]) == 1
    assert await index.sources() == [first, source("b"), source("c")]
    assert await index.sources(limit=1) == [first]
    assert await index.add_sources([]) == 0


async def test_a_source_is_found_by_its_address(index: RegistryIndex) -> None:
    there = source("a")
    await index.add_sources([there])
    assert await index.source(there.url) == there
    assert await index.source("https://b.example/") is None


async def test_a_source_with_a_very_long_address_is_refused(index: RegistryIndex) -> None:
    with pytest.raises(ValueError, match="1 to 2000 bytes"):
        await index.add_sources([source("a"), source("a" * 3000)])
    assert await index.sources() == []


async def test_due_sources_are_claimed_the_longest_due_first(
    index: RegistryIndex, clock: Clock
) -> None:
    await index.add_sources(
        [
            source("later", due_at=clock.now + 1),
            source("second", due_at=clock.now),
            source("first", due_at=5),
            source("pushed", kind=SourceKind.PUSH, due_at=clock.now - 1),
            source("upstream", kind=SourceKind.REGISTRY),
        ]
    )
    claimed = await index.claim_sources(10, 60.0)
    names = ["first", "pushed", "second"]
    assert [each.url for each in claimed] == [f"https://{name}.example/" for name in names]
    assert await index.claim_sources(10, 60.0) == []
    clock.now += 1
    assert [each.url for each in await index.claim_sources(10, 60.0)] == ["https://later.example/"]


async def test_no_more_sources_are_claimed_than_asked_for(index: RegistryIndex) -> None:
    await index.add_sources([source(f"s{n}", due_at=n) for n in range(5)])
    assert [s.due_at for s in await index.claim_sources(2, 60.0)] == [0, 1]
    assert [s.due_at for s in await index.claim_sources(9, 60.0)] == [2, 3, 4]
    assert await index.claim_sources(0, 60.0) == []


async def test_a_claim_that_is_not_ended_expires(index: RegistryIndex, clock: Clock) -> None:
    await index.add_sources([source("a")])
    assert len(await index.claim_sources(1, 60.0)) == 1
    clock.now += 59_999
    assert await index.claim_sources(1, 60.0) == []
    clock.now += 1
    assert len(await index.claim_sources(1, 60.0)) == 1


async def test_a_visit_stores_what_it_found(index: RegistryIndex, clock: Clock) -> None:
    await index.add_sources([source("a")])
    [claimed] = await index.claim_sources(1, 60.0)
    visited = msgspec.structs.replace(
        claimed,
        state=SourceState.FAILED,
        reason="it does not answer: \x00",
        failures=3,
        etag='"e"',
        last_modified="today",
        fetched_at=clock.now,
        due_at=clock.now + 10,
    )
    await index.end_visit(visited)
    [kept] = await index.sources()
    assert kept == msgspec.structs.replace(visited, reason="it does not answer: \ufffd")
    assert await index.claim_sources(1, 60.0) == []
    clock.now += 10
    assert len(await index.claim_sources(1, 60.0)) == 1


async def test_the_end_of_a_visit_to_a_removed_source_adds_none(index: RegistryIndex) -> None:
    await index.end_visit(source("a"))
    assert await index.sources() == []


async def test_a_removed_source_takes_its_entries_along(index: RegistryIndex) -> None:
    await index.add_sources([source("a", url=CATALOG)])
    await index.put([draft("one"), draft("two", source="https://b.example/")])
    assert await index.remove_source(CATALOG)
    assert not await index.remove_source(CATALOG)
    assert await index.sources() == []
    assert await listed(index) == {"two"}
    assert await standings(index, "one") == {CATALOG: "withdrawn"}
