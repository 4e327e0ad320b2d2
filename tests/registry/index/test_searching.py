"""Entries are found by words, whatever the words are, and only by those who may see them."""

from __future__ import annotations

import random

import pytest

from parley.registry.index import entry_search
from parley.registry.index.entry_search import SearchTables
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.sqlite import SqliteRegistryIndex
from parley.registry.records import EntrySelection, Viewer
from tests.registry.index.making import OPERATOR, draft, found, identifier, where

pytestmark = pytest.mark.anyio


async def test_a_sentence_finds_the_agent_that_does_it(index: RegistryIndex) -> None:
    await index.put(
        [
            draft("money", "Currency converter", texts={"A": "Currency converter", "C": "Rates."}),
            draft("sky", "Weather forecasts for the week"),
            draft("finder", "Finds agents for anybody"),
        ]
    )
    assert await found(index, "find me an agent that converts currencies, please") == ["money"]
    assert await found(index, "What will the weather be? I need a forecast!") == ["sky"]


async def test_any_word_finds_and_more_words_are_more_relevant(index: RegistryIndex) -> None:
    await index.put(
        [
            draft("both", "flight and hotel booking"),
            draft("one", "hotel reviews"),
            draft("none", "violin lessons"),
            *[draft(f"n{n}", f"garden number {n}") for n in range(20)],
        ]
    )
    assert await found(index, "book a hotel and a flight") == ["both", "one"]


async def test_words_in_names_weigh_more_than_those_in_descriptions(index: RegistryIndex) -> None:
    texts = [{weight: "violin", "D": "a b c"} for weight in "CAB"]
    await index.put([draft(f"n{n}", texts=texts[n]) for n in range(3)])
    await index.put([draft(f"m{n}", f"garden {n}") for n in range(9)])
    assert await found(index, "violin") == ["n1", "n2", "n0"]


async def test_a_word_that_is_repeated_does_not_win_over_two_words(index: RegistryIndex) -> None:
    await index.put([draft(f"n{n}", f"garden number {n}") for n in range(40)])
    await index.put([draft("stuffed", "hotel " * 300), draft("honest", "hotel and flight booking")])
    assert (await found(index, "hotel and flight"))[0] == "honest"


async def test_equally_relevant_entries_come_in_the_order_of_their_keys(
    index: RegistryIndex,
) -> None:
    await index.put([draft(f"n{n}", "violin lessons") for n in (3, 1, 2)])
    assert await found(index, "violin") == ["n3", "n1", "n2"]


async def test_pages_of_a_search_do_not_overlap(index: RegistryIndex) -> None:
    await index.put([draft(f"n{n}", f"violin {'lesson ' * (n % 5)}") for n in range(50)])
    selection = EntrySelection(words="violin lessons")
    every = [match.entry.key for match in await index.search(selection, 100, 0)]
    pages = [await index.search(selection, 7, offset) for offset in range(0, 60, 7)]
    assert [match.entry.key for page in pages for match in page] == every
    assert len(set(every)) == 50 == await index.count(selection)
    relevances = [match.relevance for page in pages for match in page]
    assert relevances == sorted(relevances, reverse=True)


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("Übersetzer für Café-Gäste", ["ubersetzer", "ÜBERSETZER", "cafe", "Gaste", "cafégäste"]),
        ("translates documents", ["translator", "Translation of a document"]),
        ("getWeatherForecast", ["weather", "forecasts", "getWeatherForecast", "get_weather"]),
        ("currency_converter e-mail", ["currency", "email", "e-mail", "converting", "mail"]),
        ("货币转换和天气预报", ["货币", "天气预报", "货", "报", "请问天气"]),
        ("東京の天気を調べます", ["天気", "東京", "京都か東京"]),
        ("서울 날씨 예보", ["날씨", "서울의 날씨"]),
        ("พยากรณ์อากาศ", ["อากาศ"]),
        ("मौसम की जानकारी", ["मौसम"]),
        ("прогноз погоды", ["погоды", "ПРОГНОЗ"]),
        ("ترجمة النصوص", ["ترجمة"]),
        ("Code in C++, C# and .NET", ["c++", "C#", ".net developers"]),
        ("US visa forms", ["US", "visas"]),
        ("ﬁnance ½", ["finance"]),
        ("forecasting", ["forec", "foreca"]),
    ],
)
async def test_texts_are_found_in_their_own_script(
    index: RegistryIndex, text: str, needs: list[str]
) -> None:
    await index.put([draft("other", "quite something else"), draft("one", text)])
    for need in needs:
        assert await found(index, need) == ["one"], need


@pytest.mark.parametrize("need", ["", " ", "???", "\x00", "🦊", "violin" * 50, "\ud800", "'" * 500])
async def test_a_need_without_known_words_finds_nothing(index: RegistryIndex, need: str) -> None:
    await index.put([draft("one", "garden")])
    assert await found(index, need) == ([] if need else ["one"])


async def test_words_that_needs_are_asked_with_count_if_there_are_no_others(
    index: RegistryIndex,
) -> None:
    await index.put([draft("one", "The Who"), draft("two", "garden")])
    assert await found(index, "the who") == ["one"]


SYNTAX = [
    '"',
    "'",
    '"violin',
    "violin*",
    "^violin",
    "a : violin",
    "{a b} : violin",
    "-violin",
    "violin OR",
    "AND",
    "NOT violin",
    "NEAR(violin piano, 2)",
    "violin + piano",
    "(violin",
    "))",
    "violin & !piano | x:*",
    "violin <-> piano",
    "violin\\",
    "%s %(name)s %% {schema} {n} :key ?1 $1",
    "'; DROP TABLE entries; --",
    "*",
    "::tsquery",
    "violin\x00",
    "rank:bm25(1)",
]


@pytest.mark.parametrize("need", SYNTAX)
async def test_syntax_of_a_database_is_text_in_a_need(index: RegistryIndex, need: str) -> None:
    await index.put([draft("one", "violin"), draft("two", need), draft("three", "garden")])
    names = await found(index, need)
    assert "three" not in names
    assert ("one" in names) == ("violin" in need)


async def test_no_need_fails(index: RegistryIndex) -> None:
    chance = random.Random(16)
    signs = (
        "\"'*^:(){}[]|&!<>-+~\\/%$?#@,;. \t\n\x00\x01éß漢字かなไท🦊\u0301\u200d\ud800ORANDNEAR a1"
    )
    await index.put([draft("one", signs), draft("two", "garden")])
    for _ in range(300):
        need = "".join([chance.choice(signs) for _ in range(chance.randint(1, 30))])
        await found(index, need)
    await found(index, " ".join([f"word{n}" for n in range(50_000)]))
    await found(index, "漢" * 100_000)


# Who sees what


async def test_only_its_audience_sees_an_entry(index: RegistryIndex) -> None:
    await index.put(
        [
            draft("open", "violin"),
            draft("mine", "violin", audience=("me", "team")),
            draft("yours", "violin", audience=("you",)),
        ]
    )

    async def seen(viewer: Viewer) -> list[str]:
        selection = EntrySelection(viewer=viewer)
        names = sorted(await found(index, "violin", viewer=viewer))
        assert sorted(short(e.identifier) for e in await index.browse(selection, (), 9, 0)) == names
        assert await index.count(selection) == len(names)
        buckets, _ = await index.facet(selection, "displayName", 9, 1)
        assert sorted(value for value, _ in buckets) == names
        every = [await index.entry(identifier(name), viewer) for name in ("open", "mine", "yours")]
        assert sorted(short(entry.identifier) for entry in every if entry) == names
        return names

    def short(full: str) -> str:
        return full.rpartition(":")[2]

    assert await seen(Viewer()) == ["open"]
    assert await seen(Viewer(tokens=("team", "x"))) == ["mine", "open"]
    assert await seen(Viewer(tokens=("you", "me"))) == ["mine", "open", "yours"]
    assert await seen(OPERATOR) == ["mine", "open", "yours"]
    await index.put([draft("mine", "violin")])
    assert await seen(Viewer()) == ["mine", "open"]


async def test_constraints_hold_for_what_words_find(index: RegistryIndex) -> None:
    await index.put(
        [
            draft(f"n{n}", "violin", fields={"tags": ("even" if n % 2 == 0 else "odd",)})
            for n in range(6)
        ]
    )
    assert sorted(await found(index, "violin", where("tags", "EVEN"))) == ["n0", "n2", "n4"]
    odd = where("tags", "even", negated=True)
    assert sorted(await found(index, "violin", odd)) == ["n1", "n3", "n5"]
    assert await found(index, "violin", where("tags", "none")) == []
    selection = EntrySelection(words="violin", constraints=(odd,))
    assert await index.count(selection) == 3
    assert await index.facet(selection, "tags", 9, 1) == ([("odd", 3)], 0)


# Words that are everywhere


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let searches rank 40 entries at most."""
    monkeypatch.setattr(entry_search, "MAX_COMPARED", 40)
    monkeypatch.setattr(entry_search, "MIN_MATCHES", 5)
    return 40


async def crowd(index: RegistryIndex) -> None:
    """300 entries with words that are everywhere; 10 of them have both, 20 one in their names."""
    drafts = []
    for n in range(300):
        texts = {"A": f"n{n}", "C": "data service" if n % 30 == 0 else "data"}
        if 100 <= n < 120:
            texts["A"] = "data"
        if n == 299:
            texts["C"] = "data and a violin"
        drafts.append(draft(f"n{n}", texts=texts, fields={"tags": (f"t{n % 100}",)}))
    await index.put(drafts)


async def test_a_search_ranks_no_more_entries_than_its_budget(
    index: RegistryIndex, small_budget: int
) -> None:
    await crowd(index)
    await index.put([draft(f"n{n}", "data") for n in range(100, 120)])
    assert len(await found(index, "data")) <= small_budget
    names = await found(index, "data")
    assert set(names) == {f"n{n}" for n in range(100, 120)}, "what has it in its name goes first"


async def test_a_rare_word_finds_beside_words_that_are_everywhere(
    index: RegistryIndex, small_budget: int
) -> None:
    await crowd(index)
    assert await found(index, "data violin") == ["n299"]
    both = await found(index, "service data")
    assert set(both) == {f"n{n}" for n in range(0, 300, 30)}


async def test_a_constraint_holds_within_words_that_are_everywhere(
    index: RegistryIndex, small_budget: int
) -> None:
    await crowd(index)
    assert set(await found(index, "data", where("tags", "t77"))) == {"n77", "n177", "n277"}
    others = await found(index, "data", where("tags", *[f"t{n}" for n in range(90)], negated=True))
    assert set(others) <= {f"n{n}" for n in range(300) if n % 100 >= 90}
    assert len(others) > 5


async def test_a_search_for_what_is_everywhere_costs_the_same_in_a_large_index(
    small_budget: int,
) -> None:
    steps = []
    for size in (400, 1_600):
        index = SqliteRegistryIndex()
        await index.open()
        await index.put([draft(f"n{n}", texts={"C": f"data service {n}"}) for n in range(size)])
        await index.count(EntrySelection())
        counted: list[int] = []

        def count(tables: SearchTables, counted: list[int] = counted) -> None:
            # The handler is called after every 10 steps of SQLite's machine.
            tables.connection.set_progress_handler(lambda: counted.append(1), 10)
            for need in ("data", "data service"):
                assert len(tables.matches(EntrySelection(words=need))) == small_budget

        await index._search.run(count)
        steps.append(len(counted))
        await index.close()
    assert steps[1] < steps[0] * 1.5, steps


async def test_a_word_that_no_entry_has_stands_for_one_that_it_may_be(index: RegistryIndex) -> None:
    await index.put([draft("fx", "currency conversion"), draft("rain", "weather forecast")])
    assert await found(index, "curency") == ["fx"]
    assert await found(index, "forecsat") == ["rain"]
    assert await found(index, "curtains") == []
    # A word that entries have is taken as it is.
    await index.put([draft("odd", "curency")])
    assert await found(index, "curency") == ["odd"]
