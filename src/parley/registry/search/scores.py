"""Scores of results: how well an entry matches a need, from 0 to 100.

A score depends on the need and the entry, and on the best match of the registry; not on the page,
and not on trust. Of a need whose every word stands in the name, the queries, the tags or the skills
of the best match, that has 100. Words that an entry lacks cost their share, and so does standing in
a description only. Scores of two registries mean the same, whatever their databases measure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from parley.client.registry.word_match import MISSPELLED_FROM, is_misspelling
from parley.registry.index.words import asked_words, words_of

BEST = 100
WEIGHTS = {"A": 1.0, "B": 1.0, "C": 0.9, "D": 0.75}
"""What a word of a need counts, by the strongest text that it is found in."""

BEGINNING = 0.8
"""What a word counts whose beginning only is asked for."""

MISSPELLED = 0.7
"""What a word counts that may be misspelled."""

SPREAD = 0.5
"""How much of a score is by the relevance relative to the best match."""


def coverage(asked: Sequence[str], texts: Mapping[str, str]) -> float:
    """Return how much of a need's words the texts of an entry have, between 0 and 1."""
    if not asked:
        return 0.0
    missing = set(asked)
    total = 0.0
    for weight, counts in WEIGHTS.items():
        if not missing or weight not in texts:
            continue
        words = set(words_of(texts[weight], all_words=weight in "AB"))
        found = missing & words
        total += counts * len(found)
        missing -= found
        begun = beginnings(missing, words)
        total += counts * BEGINNING * len(begun)
        missing -= begun
        meant = misspelled(missing, words)
        total += counts * MISSPELLED * len(meant)
        missing -= meant
    return total / len(asked)


def beginnings(missing: Collection[str], words: Collection[str]) -> set[str]:
    """Return the words, of three letters or more, that others begin with."""
    long = [word for word in missing if len(word) > 2]
    if not long:
        return set()
    ordered = [*sorted(words), ""]
    return {
        word for word in long if ordered[bisect_left(ordered, word, hi=len(words))].startswith(word)
    }


def misspelled(missing: Collection[str], words: Collection[str]) -> set[str]:
    """Return the words that differ from others in one letter only."""
    near: dict[str, list[str]] = {word[:2]: [] for word in missing if len(word) >= MISSPELLED_FROM}
    for known in words if near else ():
        if known[:2] in near:
            near[known[:2]].append(known)
    return {
        word
        for word in missing
        if any(is_misspelling(word, known) for known in near.get(word[:2], ()))
    }


def need_words(text: str) -> list[str]:
    """Return the words of a need that count."""
    return asked_words(text)


def word_score(covered: float, relevance: float, best: float) -> float:
    """Return how well an entry matches by words, between 0 and 1."""
    relative = min(1.0, max(0.0, relevance / best)) if best > 0 else 1.0
    return covered * (1 - SPREAD + SPREAD * relative)


def as_score(match: float, before: int = BEST) -> int:
    """Return a match between 0 and 1 as a score, which is not above the one before it.

    Only a full match has full marks, and what matches at all has one.
    """
    score = BEST if match >= 1 else min(BEST - 1, round(BEST * match))
    return max(1, min(score, before))
