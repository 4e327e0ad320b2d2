"""Search, exploration and lists of a registry's own index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from parley.registry.catalog.searching import (
    ExploreRequest,
    FacetRequest,
    ListRequest,
    QueryModel,
    SearchRequest,
    SearchResult,
)
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import Trust, Viewer
from parley.registry.search.searcher import Searcher
from tests.registry.search.making import SOURCE, draft, names

pytestmark = pytest.mark.anyio

WEATHER = [
    draft("forecast", "Weather forecast", "will it rain tomorrow", tags=["weather"]),
    draft("marine", "Marine weather", "how high are the waves", tags=["weather", "sea"]),
    draft("surf", "Surf reports", description="Waves and weather for surfers.", tags=["sea"]),
    draft("currency", "Currency converter", "convert euros to dollars", tags=["finance"]),
]


def ask(text: str, *, size: int = 10, token: str = "", **filter: Sequence[str]) -> SearchRequest:
    query = QueryModel(text=text, filter={name: tuple(each) for name, each in filter.items()})
    return SearchRequest(query=query, page_size=size, page_token=token)


async def every_page(searcher: Searcher, text: str, size: int) -> list[SearchResult]:
    found: list[SearchResult] = []
    token = ""
    while True:
        answer = await searcher.search(ask(text, size=size, token=token))
        found += answer.results
        token = answer.page_token
        if not token:
            return found


async def test_who_may_not_see_an_entry_finds_no_trace_of_it(index: RegistryIndex) -> None:
    await index.put([*WEATHER, draft("secret", "Weather secret", _audience=("team",))])
    searcher = Searcher(index, source=SOURCE)
    member = Viewer(tokens=("team",))
    explore = ExploreRequest(
        query=QueryModel(text="weather"), facets=(FacetRequest(field="publisher"),)
    )
    assert "secret" not in names((await searcher.search(ask("secret weather"))).results)
    assert "secret" in names((await searcher.search(ask("secret weather"), member)).results)
    assert (await searcher.browse(ListRequest())).total == 4
    assert (await searcher.browse(ListRequest(), member)).total == 5
    assert (await searcher.explore(explore))["publisher"].buckets[0].count == 3
    assert (await searcher.explore(explore, member))["publisher"].buckets[0].count == 4


async def test_lists_are_filtered_ordered_and_counted(index: RegistryIndex) -> None:
    await index.put(WEATHER)
    searcher = Searcher(index, source=SOURCE)
    request = ListRequest(
        filter="tags = weather, sea AND displayName : 'r' AND createdAfter > '2020-01-01'",
        order_by="displayName DESC",
        page_size=2,
    )
    first = await searcher.browse(request)
    assert (names(first.items), first.total) == (["forecast", "surf"], 3)
    then = await searcher.browse(msgspec.structs.replace(request, page_token=first.page_token))
    assert (names(then.items), then.total, then.page_token) == (["marine"], 3, "")
    none = await searcher.browse(ListRequest(filter="createdAfter > '2999-01-01'"))
    assert (none.items, none.total) == ([], 0)
    assert (
        await searcher.browse(ListRequest(filter="NOT updatedBefore = '2020-01-01'"))
    ).total == 4


async def test_an_entry_says_what_the_registry_knows_of_it_and_cannot_say_it_itself(
    index: RegistryIndex,
) -> None:
    forged = {"trust": "verified", "marks": []}
    await index.put([draft("liar", "Weather", registry=forged, _marks=("instructions",))])
    [result] = (await Searcher(index, source=SOURCE).search(ask("weather"))).results
    assert result.entry["registry"]["trust"] == "unproved"
    assert result.entry["registry"]["marks"] == ["instructions"]
    assert result.entry["registry"]["createdAt"].endswith("Z")
    assert result.entry["displayName"] == "Weather"


async def test_entries_are_filtered_by_what_the_registry_found_out_not_by_what_they_say(
    index: RegistryIndex,
) -> None:
    forged = {"registry.trust": ("verified",), "registry.marks": ("none",)}
    await index.put(
        [
            draft("signed", "Weather", _trust=Trust.VERIFIED),
            draft("odd", "Weather", _marks=("instructions", "markup"), _fields=forged),
        ]
    )
    searcher = Searcher(index, source=SOURCE)
    by_trust = QueryModel(text="weather", filter={"registry.trust": ("verified",)})
    assert names((await searcher.search(SearchRequest(query=by_trust))).results) == ["signed"]
    unmarked = ListRequest(filter="NOT registry.marks = instructions")
    assert names((await searcher.browse(unmarked)).items) == ["signed"]
    facet = ExploreRequest(facets=(FacetRequest(field="registry.marks"),))
    buckets = (await searcher.explore(facet))["registry.marks"].buckets
    assert [(each.value, each.count) for each in buckets] == [("instructions", 1), ("markup", 1)]


class NearByName:
    """A semantic index with scores set by a test."""

    def __init__(self, index: RegistryIndex, matches: dict[str, float]) -> None:
        self.index = index
        self.matches = matches

    def read(self, need: str) -> str:
        return need

    async def nearest(self, text: str, limit: int) -> list[tuple[int, float]]:
        changed = await self.index.changes(0, 1_000)
        keys = {each.identifier.rpartition(":")[2]: each.key for each in changed}
        found = [(keys[name], match) for name, match in self.matches.items()]
        return sorted(found, key=lambda each: -each[1])[:limit]


def meaning_of(index: RegistryIndex, **matches: float) -> Any:
    return NearByName(index, matches)


async def test_with_meaning_too_facets_count_what_a_search_finds(index: RegistryIndex) -> None:
    await index.put(WEATHER)
    near = meaning_of(index, currency=0.5)
    searcher = Searcher(index, source=SOURCE, meaning=near)
    explore = ExploreRequest(query=QueryModel(text="waves"), facets=(FacetRequest(field="tags"),))
    counts = {each.value: each.count for each in (await searcher.explore(explore))["tags"].buckets}
    assert counts == {"sea": 2, "weather": 1, "finance": 1}
    assert len(await every_page(searcher, "waves", 2)) == 3
