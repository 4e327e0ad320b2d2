"""The ranking is as good as it was, on the committed set of agents and needs."""

from __future__ import annotations

import pytest
from benchmarks.registry_quality import (
    DATA,
    drafts,
    measured,
    ndcg,
    needs,
    quality,
    recall,
)  # fmt: skip

from parley.registry.catalog.reading import read_catalog
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.search.meaning import Meaning
from tests.registry.search.test_meaning import needs_model

pytestmark = pytest.mark.anyio


async def test_searches_by_words_are_good_enough(index: RegistryIndex) -> None:
    await index.put(drafts())
    asked = needs()
    found = (await measured(index))["words"]
    every = quality(found, asked)
    assert every.ndcg > 0.8
    assert every.recall > 0.85
    direct = [at for at, need in enumerate(asked) if need.kind == "direct"]
    plain = quality([found[at] for at in direct], [asked[at] for at in direct])
    assert plain.ndcg > 0.95
    assert plain.recall == 1
    typos = [at for at, need in enumerate(asked) if need.kind == "typo"]
    assert quality([found[at] for at in typos], [asked[at] for at in typos]).ndcg > 0.85


@needs_model
async def test_searches_by_words_and_meaning_are_better(index: RegistryIndex) -> None:
    await index.put(drafts())
    asked = needs()
    found = await measured(index, Meaning.load(index))
    both, words = quality(found["both"], asked), quality(found["words"], asked)
    assert both.ndcg > max(0.9, words.ndcg + 0.05)
    assert both.recall > 0.95
    assert quality(found["meaning"], asked).ndcg > 0.85


async def test_the_right_agent_is_first_for_ordinary_needs(index: RegistryIndex) -> None:
    await index.put(drafts())
    asked = [need for need in needs("ordinary.json") if need.kind == "ordinary"]
    found = (await measured(index, asked=asked))["words"]
    assert quality(found, asked).first >= 47 < len(asked) == 50


@needs_model
async def test_the_right_agent_is_first_by_meaning_too_for_chinese_needs(
    index: RegistryIndex,
) -> None:
    await index.put(drafts())
    asked = needs("ordinary.json")
    found = (await measured(index, Meaning.load(index), asked))["both"]
    for kind, least in (("ordinary", 47), ("chinese", 8)):
        chosen = [at for at, need in enumerate(asked) if need.kind == kind]
        ranked = quality([found[at] for at in chosen], [asked[at] for at in chosen])
        assert ranked.first >= least, kind


def test_the_set_is_sound() -> None:
    catalog = read_catalog((DATA / "catalog.json").read_bytes())
    identifiers = {entry.identifier for entry in catalog.catalog.entries}
    assert len(identifiers) == len(catalog.catalog.entries) >= 150
    asked = [*needs(), *needs("ordinary.json")]
    assert len({need.text for need in asked}) == len(asked) >= 150
    for need in asked:
        assert need.relevant.keys() <= identifiers, need.text
        assert 3 in need.relevant.values(), need.text
        assert set(need.relevant.values()) <= {1, 2, 3}, need.text


def test_the_measures_are_those_of_the_books() -> None:
    relevant = {"a": 3, "b": 1}
    assert ndcg(["a", "b"], relevant) == 1
    assert ndcg(["x", "y"], relevant) == 0
    assert ndcg(["b", "a"], relevant) == pytest.approx((1 + 7 / 1.585) / (7 + 1 / 1.585), rel=1e-3)
    assert recall(["x", "a"], relevant) == 1
    assert recall(["b"], relevant) == 0
    assert recall([*"cdefghijkl", "a"], relevant) == 0
