"""Scores of results."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.registry.index.entry_search import SYNONYM, asked_of, rank_all, words_by_weight
from parley.registry.search.searcher import as_score

TEXTS = {"A": "Currency converter", "B": "exchange rates", "C": "Converts euros.", "D": "Frankfurt"}


@pytest.mark.parametrize(
    ("need", "covered"),
    [
        ("currency converters", 1.0),
        ("find me an agent for currency exchange", 1.0),
        ("euros", 0.9),
        ("Frankfurt", 0.75),
        ("currency weather", 0.5),
        ("weather", None),
        ("yen", SYNONYM),
        ("yen Frankfurt", (SYNONYM + 0.75) / 2),
        ("???", None),
    ],
)
def test_a_need_is_covered_by_where_its_words_stand(need: str, covered: float | None) -> None:
    [match] = rank_all(asked_of(need), {1: words_by_weight(TEXTS)}).values() or [None]
    assert match == (None if covered is None else pytest.approx(covered))


def test_an_entry_that_has_only_synonyms_must_cover_much_of_a_need() -> None:
    texts = {1: words_by_weight(TEXTS)}
    assert rank_all(asked_of("yen"), texts)
    assert not rank_all(asked_of("yen for a violin lesson"), texts)
    assert rank_all(asked_of("euros for a violin lesson"), texts)


def test_only_a_full_match_has_full_marks() -> None:
    assert as_score(1.0) == 100
    assert as_score(0.999_9) == 99
    assert as_score(0.0) == 1


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 100))
def test_a_better_match_never_has_a_lower_score(one: float, other: float, before: int) -> None:
    low, high = sorted((one, other))
    assert 1 <= as_score(low, before) <= as_score(high, before) <= before
