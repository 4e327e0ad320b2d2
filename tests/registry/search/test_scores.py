"""Scores of results."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.registry.search.searcher import as_score, beginnings, coverage, need_words, word_score

TEXTS = {"A": "Currency converter", "B": "exchange rates", "C": "Converts euros.", "D": "Frankfurt"}


@pytest.mark.parametrize(
    ("need", "covered"),
    [
        ("currency converters", 1.0),
        ("find me an agent for currency exchange", 1.0),
        ("euros", 0.9),
        ("Frankfurt", 0.75),
        ("currency weather", 0.5),
        ("weather", 0.0),
        ("curr", 0.8),
        ("curency", 0.7),
        ("cxrrency", 0.0),
    ],
)
def test_a_need_is_covered_by_where_its_words_stand(need: str, covered: float) -> None:
    assert coverage(need_words(need), TEXTS) == pytest.approx(covered)


@given(st.lists(st.text("ab", min_size=1, max_size=6)), st.lists(st.text("ab", min_size=3)))
def test_a_word_counts_that_others_begin_with(known: list[str], asked: list[str]) -> None:
    begun = {word for word in asked if any(each.startswith(word) for each in known)}
    assert beginnings(asked, known) == begun


def test_a_need_without_words_is_not_covered() -> None:
    assert coverage([], TEXTS) == 0.0


def test_only_a_full_match_has_full_marks() -> None:
    assert as_score(1.0) == 100
    assert as_score(0.999_9) == 99
    assert as_score(word_score(1.0, 9.0, 10.0)) < 100
    assert as_score(word_score(1.0, 10.0, 10.0)) == 100
    assert as_score(0.0) == 1


@given(
    st.floats(0, 1), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 100)
)
def test_a_better_match_never_has_a_lower_score(
    covered: float, one: float, other: float, best: float, before: int
) -> None:
    low, high = sorted((one, other))
    assert word_score(covered, low, best) <= word_score(covered, high, best)
    score = as_score(word_score(covered, high, best), before)
    assert 1 <= score <= before
