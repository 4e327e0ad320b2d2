"""Searches by meaning: with the model of the extra, where it is installed."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from parley.database.errors import StoreUnavailable
from parley.registry.catalog.searching import QueryModel, SearchRequest
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.urls import open_index
from parley.registry.records import EntryStanding, IndexedEntry
from parley.registry.search.meaning import EntryVectors, Meaning, match_of, telling
from parley.registry.search.searcher import Searcher
from tests.kit.waiting import until
from tests.registry.search.making import SOURCE, draft, names

pytestmark = pytest.mark.anyio

HAS_MODEL = all(find_spec(name) for name in ("wordllama", "numpy", "tokenizers", "safetensors"))
needs_model = pytest.mark.skipif(not HAS_MODEL, reason="the extra meaning is not installed")
needs_numpy = pytest.mark.skipif(find_spec("numpy") is None, reason="numpy is not installed")

AGENTS = [
    draft("currency", "Currency Converter", description="Converts amounts of money."),
    draft("weather", "Weather Forecast", description="Rain, wind and temperature."),
    draft("flights", "Flight Booking", description="Books seats of airlines."),
]


async def found(index: RegistryIndex, meaning: Meaning, text: str) -> list[str]:
    searcher = Searcher(index, source=SOURCE, meaning=meaning)
    return names((await searcher.search(SearchRequest(query=QueryModel(text=text)))).results)


@needs_model
async def test_an_agent_is_found_by_a_need_without_a_common_word(index: RegistryIndex) -> None:
    await index.put(AGENTS)
    words_only = Searcher(index, source=SOURCE)
    need = SearchRequest(query=QueryModel(text="pesos for my holidays abroad"))
    assert (await words_only.search(need)).results == ()
    meaning = Meaning.load(index)
    assert await meaning.catch_up() == 3
    assert (await found(index, meaning, "pesos for my holidays abroad"))[0] == "currency"
    assert (await found(index, meaning, "umbrella today"))[:1] == ["weather"]
    assert (await found(index, meaning, "purchase plane tickets"))[0] == "flights"
    assert await found(index, meaning, "???") == []


@needs_model
async def test_changes_of_the_index_are_followed(index: RegistryIndex) -> None:
    meaning = Meaning.load(index, interval=0.01)
    await meaning.start()
    await meaning.start()
    try:
        await index.put(AGENTS)
        await until(lambda: len(meaning) == 3)
        await index.put([draft("currency", "Gardening", description="Roses and tulips.")])
        await until_found(meaning, index, "flowers")
        await index.withdraw(AGENTS[0].source, [AGENTS[1].identifier], "gone")
        await until(lambda: len(meaning) == 1)
        assert "currency" not in await found(index, meaning, "flowers")
    finally:
        await meaning.stop()
        await meaning.stop()


async def until_found(meaning: Meaning, index: RegistryIndex, text: str) -> None:
    """Wait until something is found by a meaning."""
    await meaning.catch_up()
    assert (await found(index, meaning, text))[:1] == ["currency"]


@needs_model
async def test_entries_that_are_not_listed_have_no_vectors(index: RegistryIndex) -> None:
    await index.put([*AGENTS, draft("held", "Money", _standing=EntryStanding.HELD)])
    meaning = Meaning.load(index)
    await meaning.catch_up()
    assert len(meaning) == 3


@needs_model
async def test_the_model_is_read_without_a_network_or_a_place_to_download_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a process of its own, where each use of a socket ends it."""
    code = """
import os, sys, logging
def refuse(event, args):
    if event.startswith("socket."):
        os._exit(7)
    if event == "open" and isinstance(args[0], str) and isinstance(args[1], str):
        if set(args[1]) & set("wax+"):
            os._exit(8)
sys.dont_write_bytecode = True
sys.addaudithook(refuse)
from parley.registry.search.meaning import WordVectors
vectors = WordVectors.load().of(["convert money", "exchange dollars", "grow roses", ""])
assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
assert not vectors[3].any()
assert "wordllama" not in sys.modules and "requests" not in sys.modules
assert not logging.getLogger().handlers
print("ready")
"""
    monkeypatch.setenv("HOME", "/nonexistent")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr


async def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] in ("safetensors", "tokenizers", "numpy"):
            raise ModuleNotFoundError(name=name)
        return really(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    index = open_index("memory:")
    with pytest.raises(ValueError, match=r"search by meaning needs a model: pip install .*meaning"):
        Meaning.load(index)
    await index.close()


def test_a_search_by_words_imports_no_model() -> None:
    code = """
import sys
import parley.registry.search.searcher, parley.registry.search.meaning
assert not {"numpy", "tokenizers", "safetensors", "wordllama"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Sketch:
    """Vectors by the letters of a text, which need no model."""

    name = "letters"
    dimensions = 26

    def of(self, texts: Sequence[str]) -> Any:
        import numpy

        rows = numpy.zeros((len(texts), 26), dtype=numpy.float32)
        for row, text in enumerate(texts):
            for letter in text.lower():
                if "a" <= letter <= "z":
                    rows[row, ord(letter) - 97] += 1
        lengths = numpy.linalg.norm(rows, axis=1, keepdims=True)
        return rows / numpy.where(lengths > 0, lengths, 1)


class BrokenIndex:
    """An index that cannot be read for a while."""

    losses = 0

    def __init__(self) -> None:
        self.is_broken = True
        self.asked = 0

    async def catch_up(self) -> None:
        self.asked += 1
        if self.is_broken:
            raise StoreUnavailable("the database is away")

    async def changes(self, after: int, limit: int) -> list[IndexedEntry]:
        return []


@needs_numpy
async def test_following_goes_on_after_the_database_was_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    index: Any = BrokenIndex()
    meaning = Meaning(index, Sketch(), interval=0.001)
    await meaning.start()
    await until(lambda: index.asked > 3)
    index.is_broken = False
    asked = index.asked
    await until(lambda: index.asked > asked + 2)
    await meaning.stop()
    assert caplog.text.count("following the index") == 1


@needs_numpy
async def test_following_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    index: Any = BrokenIndex()
    index.is_broken, index.changes = False, None
    meaning = Meaning(index, Sketch(), interval=0.001)
    await meaning.start()
    await until(lambda: "following the index failed" in caplog.text)
    await meaning.stop()


@needs_numpy
def test_vectors_are_put_replaced_and_removed() -> None:
    sketch = Sketch()
    vectors = EntryVectors(26)
    texts = {key: chr(97 + key % 26) * 3 for key in range(3_000)}
    vectors.put(list(texts), sketch.of(list(texts.values())))
    assert len(vectors) == 3_000
    assert {key % 26 for key, _ in vectors.nearest(sketch.of(["c"])[0], 50)} == {2}
    vectors.remove([key for key in texts if key % 26 == 2])
    assert vectors.nearest(sketch.of(["c"])[0], 1)[0][1] == pytest.approx(0)
    vectors.put([7, 9_999], sketch.of(["ccc", "cc"]))
    assert [key for key, _ in vectors.nearest(sketch.of(["c"])[0], 2)] == [7, 9_999]
    vectors.remove(list(texts))
    vectors.remove([1, 2, 3])
    assert vectors.nearest(sketch.of(["c"])[0], 10) == [(9_999, pytest.approx(1.0))]
    vectors.remove([9_999])
    assert (len(vectors), vectors.nearest(sketch.of(["c"])[0], 10)) == (0, [])


def test_needs_are_compared_without_the_words_that_ask() -> None:
    assert telling("Find me an agent that converts currencies, please!") == "converts currencies"
    assert telling("find an agent") == "find an agent"
    assert telling("?!") == ""


def test_a_match_grows_with_the_cosine_between_0_and_1() -> None:
    cosines = [-1.0, 0.0, 0.1, 0.3, 0.5, 0.79, 0.8, 1.0]
    matches = [match_of(cosine) for cosine in cosines]
    assert matches == sorted(matches)
    assert (matches[0], matches[-1]) == (0.0, 1.0)
