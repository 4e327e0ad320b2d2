"""Search by meaning, with the model of the optional dependency if it is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from parley.registry.catalog.searching import QueryModel, SearchRequest
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import EntryStanding
from parley.registry.search.meaning import EntryVectors, Meaning
from parley.registry.search.searcher import Searcher
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


@pytest.mark.slow
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
async def test_entries_that_are_not_listed_have_no_vectors(index: RegistryIndex) -> None:
    await index.put([*AGENTS, draft("held", "Money", _standing=EntryStanding.HELD)])
    meaning = Meaning.load(index)
    await meaning.catch_up()
    assert len(meaning) == 3


@pytest.mark.slow
def test_a_search_by_words_imports_no_model() -> None:
    code = """
import sys
import parley.registry.search.searcher, parley.registry.search.meaning
assert not {"numpy", "tokenizers", "safetensors", "wordllama"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Sketch:
    """Vectors from the letters of a text, without a model."""

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
