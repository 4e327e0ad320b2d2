"""Search finds entries by any words, and only for callers with access."""

from __future__ import annotations

import pytest

from parley.registry.index import entry_search
from parley.registry.index.entry_search import SearchTables
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.sqlite import SqliteRegistryIndex
from parley.registry.records import EntrySelection
from tests.registry.index.making import draft, found, where

pytestmark = pytest.mark.anyio


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


# Visibility


# Very frequent words


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> int:
    """Limit the ranking of a search to 40 entries."""
    monkeypatch.setattr(entry_search, "MAX_COMPARED", 40)
    monkeypatch.setattr(entry_search, "MIN_MATCHES", 5)
    return 40


async def crowd(index: RegistryIndex) -> None:
    """300 entries with frequent words; 10 have both words, 20 have a word in their names."""
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
    assert set(names) == {f"n{n}" for n in range(100, 120)}, "a match in the name ranks first"


async def test_a_constraint_holds_within_words_that_are_everywhere(
    index: RegistryIndex, small_budget: int
) -> None:
    await crowd(index)
    assert set(await found(index, "data", where("tags", "t77"))) == {"n77", "n177", "n277"}
    others = await found(index, "data", where("tags", *[f"t{n}" for n in range(90)], negated=True))
    assert set(others) <= {f"n{n}" for n in range(300) if n % 100 >= 90}
    assert len(others) > 5


@pytest.mark.slow
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
            # The handler is called after every 10 steps of SQLite's virtual machine.
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
    # A word that occurs in entries is not corrected.
    await index.put([draft("odd", "curency")])
    assert await found(index, "curency") == ["odd"]
