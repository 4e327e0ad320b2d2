"""Words of texts and of needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.registry.index.words import MAX_LENGTH, MAX_WORDS, asked_words, stem, synonyms, words_of


@pytest.mark.parametrize(
    "words",
    [
        "currency currencies",
        "convert converts converting converted converter",
        "translate translates translator translating translation",
        "book books booked booking bookings",
        "agree agreed agreeing",
        "hop hopping hopped",
        "relate related relational",
        "city cities",
        "running run runs",
    ],
)
def test_forms_of_a_word_have_one_stem(words: str) -> None:
    assert len({stem(word) for word in words.split()}) == 1


@pytest.mark.parametrize("word", ["as", "größe", "mp3s", "c"])
def test_what_is_no_english_word_has_no_stem(word: str) -> None:
    assert stem(word) == word


def test_words_stand_for_others_in_one_direction_or_in_both() -> None:
    assert stem("currency") in synonyms()[stem("euros")]
    assert stem("euros") not in synonyms()[stem("currency")]
    assert stem("film") in synonyms()[stem("movies")]
    assert stem("movies") in synonyms()[stem("film")]


def test_needs_are_read_without_what_they_are_asked_with() -> None:
    assert asked_words("Find me an agent that converts currencies, please!") == [
        "convert",
        "currenc",
    ]
    assert asked_words("Ich suche einen Agenten, der Flüge bucht") == ["fluge", "bucht"]
    assert asked_words("je cherche un agent pour traduire") == ["traduir"]


def test_a_need_of_such_words_only_is_read_with_them() -> None:
    assert asked_words("find an agent") == ["find", "an", "agent"]
    assert asked_words("FIND AN AGENT") == ["find", "an", "agent"]


def test_a_name_in_capitals_is_no_word_that_says_nothing() -> None:
    assert asked_words("IT and US help") == ["it", "us"]


def test_descriptions_are_indexed_without_words_that_say_nothing() -> None:
    assert words_of("It is the fastest of all", all_words=False) == ["fastest"]
    assert "the" in words_of("The Who")


@given(st.text())
def test_words_have_nothing_that_a_database_reads_as_syntax(text: str) -> None:
    for word in (*words_of(text), *asked_words(text)):
        assert word
        assert not set(word) & set("\"'*^:(){}[]|&!<>-+~\\/%$?_ \t\n\x00")
        assert len(word) <= MAX_LENGTH
        assert not word.isspace()


@given(st.text())
def test_a_text_is_found_by_itself(text: str) -> None:
    assert set(asked_words(text)) <= set(words_of(text))


def test_words_are_bounded() -> None:
    assert len(words_of(" ".join([str(n) for n in range(9_999)]))) == MAX_WORDS
    assert words_of("x" * 999) == ["x" * MAX_LENGTH]
