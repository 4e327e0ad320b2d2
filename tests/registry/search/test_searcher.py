"""Searches, explorations and lists of a registry's own index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from parley.model.errors import InvalidParamsError
from parley.registry.catalog.searching import (
    ExploreRequest,
    FacetRequest,
    ListRequest,
    QueryModel,
    SearchRequest,
    SearchResult,
)
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import EntryStanding, Trust, Viewer
from parley.registry.search.searcher import Searcher
from tests.registry.search.making import A2A, SOURCE, draft, names

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


async def test_the_best_match_comes_first_with_its_score_and_the_source(
    index: RegistryIndex,
) -> None:
    await index.put(WEATHER)
    answer = await Searcher(index, source=SOURCE).search(ask("find me a weather forecast"))
    assert names(answer.results)[0] == "forecast"
    assert set(names(answer.results)) == {"forecast", "marine", "surf"}
    assert {each.source for each in answer.results} == {SOURCE}
    assert answer.results[0].score == 100
    assert answer.page_token == ""


async def test_scores_fall_and_only_a_full_match_has_100(index: RegistryIndex) -> None:
    await index.put(WEATHER)
    searcher = Searcher(index, source=SOURCE)
    for text in ("weather waves", "weather forecast for surfers", "convert euros into yen", "sea"):
        scores = [each.score for each in (await searcher.search(ask(text))).results]
        assert scores == sorted(scores, reverse=True)
        assert all(1 <= score <= 100 for score in scores)
    for text in ("convert euros into zlotys", "weather for surfers", "rain in Spain tomorrow"):
        [best, *_] = (await searcher.search(ask(text))).results
        assert best.score < 100


async def test_pages_together_have_what_one_page_has_with_the_same_scores(
    index: RegistryIndex,
) -> None:
    await index.put(
        [
            draft(f"a{n}", f"Weather {'report ' * (n % 5)}{n}", description="rain " * (n % 7))
            for n in range(57)
        ]
    )
    searcher = Searcher(index, source=SOURCE)
    whole = (await searcher.search(ask("weather report rain", size=100))).results
    assert len(whole) == 57
    assert await every_page(searcher, "weather report rain", 10) == list(whole)
    assert await every_page(searcher, "weather report rain", 57) == list(whole)


async def test_a_token_belongs_to_its_question(index: RegistryIndex) -> None:
    await index.put([draft(f"a{n}", "Weather", tags=["sky"]) for n in range(5)])
    searcher = Searcher(index, source=SOURCE)
    token = (await searcher.search(ask("weather", size=2))).page_token
    assert (await searcher.search(ask("weather", size=3, token=token))).results
    for other in (ask("news", token=token), ask("weather", token=token, tags=["sky"])):
        with pytest.raises(InvalidParamsError, match="belongs to another request"):
            await searcher.search(other)
    with pytest.raises(InvalidParamsError, match="belongs to another request"):
        await searcher.browse(ListRequest(page_token=token))


async def test_words_and_filters_must_both_hold(index: RegistryIndex) -> None:
    await index.put(WEATHER)
    searcher = Searcher(index, source=SOURCE)
    assert set(names((await searcher.search(ask("weather", tags=["SEA"]))).results)) == {
        "marine",
        "surf",
    }
    both = ask("weather", tags=["sea", "finance"], type=[A2A])
    assert set(names((await searcher.search(both)).results)) == {"marine", "surf"}
    assert (await searcher.search(ask("weather", nothing=["x"]))).results == ()


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (ask(""), "query.text is empty"),
        (ask("  \n"), "query.text is empty"),
        (ask("x" * 2_001), "at most 2000"),
        (ask("x", size=0), "between 1 and 100, not 0"),
        (ask("x", size=101), "between 1 and 100, not 101"),
        (ask("x", size=-1), "between 1 and 100"),
        (ask("x", token="garbage"), "not from this registry"),
        (ask("x", description=["y"]), "query.text"),
    ],
)
async def test_a_wrong_search_says_what_would_be_right(
    index: RegistryIndex, request_: SearchRequest, said: str
) -> None:
    with pytest.raises(InvalidParamsError, match=said):
        await Searcher(index, source=SOURCE).search(request_)


@pytest.mark.parametrize(
    "text", ["???", "\x00", "'; DROP TABLE entries; --", '"', "a*", "NEAR(", "🙂"]
)
async def test_no_text_of_a_need_is_syntax(index: RegistryIndex, text: str) -> None:
    await index.put(WEATHER)
    await Searcher(index, source=SOURCE).search(ask(text))
    await Searcher(index, source=SOURCE).explore(
        ExploreRequest(query=QueryModel(text=text), facets=(FacetRequest(field="tags"),))
    )


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


async def test_facets_count_what_a_search_finds(index: RegistryIndex) -> None:
    await index.put(
        [draft(f"w{n}", "Weather", tags=[f"t{n % 3}", "all"]) for n in range(150)]
        + [draft(f"n{n}", "News", tags=["other"]) for n in range(5)]
    )
    searcher = Searcher(index, source=SOURCE)
    facets = (FacetRequest(field="tags", limit=2), FacetRequest(field="type"))
    everything = await searcher.explore(ExploreRequest(facets=facets))
    assert [(each.value, each.count) for each in everything["type"].buckets] == [(A2A, 155)]
    assert everything["tags"].other_count == 50 + 50 + 5
    found = await searcher.explore(ExploreRequest(query=QueryModel(text="weather"), facets=facets))
    assert [(each.value, each.count) for each in found["tags"].buckets] == [
        ("all", 150),
        ("t0", 50),
    ]
    assert len(await every_page(searcher, "weather", 100)) == found["type"].buckets[0].count == 150


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


async def test_only_listed_entries_are_found(index: RegistryIndex) -> None:
    held = draft("held", "Weather held", _standing=EntryStanding.HELD)
    failed = draft("failed", "Weather failed", _trust=Trust.FAILED)
    await index.put([*WEATHER, held, failed])
    searcher = Searcher(index, source=SOURCE)
    assert not {"held", "failed"} & set(names((await searcher.search(ask("weather"))).results))
    assert (await searcher.browse(ListRequest())).total == 4


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


async def test_trust_takes_no_part_in_the_score(index: RegistryIndex) -> None:
    await index.put(
        [
            draft("signed", "Weather", publisher="red.example", _trust=Trust.VERIFIED),
            draft("plain", "Weather", publisher="blue.example"),
        ]
    )
    results = (await Searcher(index, source=SOURCE).search(ask("weather"))).results
    assert len({each.score for each in results}) == 1


class NearByName:
    """An index by meaning that says of entries what a test wants."""

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


async def test_meaning_finds_what_words_do_not_and_both_together_come_first(
    index: RegistryIndex,
) -> None:
    await index.put(WEATHER)
    near = meaning_of(index, forecast=0.9, currency=0.5)
    results = (await Searcher(index, source=SOURCE, meaning=near).search(ask("weather"))).results
    assert names(results)[0] == "forecast"
    assert set(names(results)) == {"forecast", "marine", "surf", "currency"}
    scores = [each.score for each in results]
    assert scores == sorted(scores, reverse=True)


async def test_filters_and_audiences_hold_for_what_meaning_finds(index: RegistryIndex) -> None:
    hidden = draft("secret", "Hidden", _audience=("team",), tags=["sea"])
    held = draft("held", "Held", _standing=EntryStanding.HELD, tags=["sea"])
    await index.put([*WEATHER, hidden, held])
    near = meaning_of(index, forecast=0.9, surf=0.8, secret=1.0, held=1.0, currency=0.4)
    searcher = Searcher(index, source=SOURCE, meaning=near)
    assert names((await searcher.search(ask("qqq", tags=["sea"]))).results) == ["surf"]
    member = Viewer(tokens=("team",))
    assert names((await searcher.search(ask("qqq", tags=["sea"]), member)).results) == [
        "secret",
        "surf",
    ]


async def test_with_meaning_too_facets_count_what_a_search_finds(index: RegistryIndex) -> None:
    await index.put(WEATHER)
    near = meaning_of(index, currency=0.5)
    searcher = Searcher(index, source=SOURCE, meaning=near)
    explore = ExploreRequest(query=QueryModel(text="waves"), facets=(FacetRequest(field="tags"),))
    counts = {each.value: each.count for each in (await searcher.explore(explore))["tags"].buckets}
    assert counts == {"sea": 2, "weather": 1, "finance": 1}
    assert len(await every_page(searcher, "waves", 2)) == 3


async def test_a_narrow_filter_is_looked_for_among_all_that_is_near(index: RegistryIndex) -> None:
    await index.put([draft(f"a{n}", "Thing", tags=["many"]) for n in range(250)])
    await index.put([draft("rare", "Thing", tags=["rare"])])
    near = meaning_of(index, **{f"a{n}": 0.9 for n in range(250)}, rare=0.3)
    searcher = Searcher(index, source=SOURCE, meaning=near)
    assert names((await searcher.search(ask("qqq", tags=["rare"]))).results) == ["rare"]
