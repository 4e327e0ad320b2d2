"""How many of the words of a need an entry has.

It serves where no index is: for catalogs in files, and for judging scores that others claim.
"""

from __future__ import annotations

import math
import re

from parley.model.catalog.entries import CatalogEntry

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENDINGS = ("ations", "ation", "ings", "ing", "ions", "ion", "ers", "er", "ies", "es", "ed", "s")
_ALL_ENDINGS = (*_ENDINGS, "e")
_SHORTEST = 3
MAX_WORDS = 64
MISSPELLED_FROM = 5
"""How many letters a word has for which others stand that differ in one."""

# Words of requests that say nothing about what is needed.
_EMPTY_TEXT = """
a an and any are at be by can could do does find for from get give have help how i in into
is it me my need of on one or please show some someone something that the their them there
this to us want we what when where which who will with would you your agent agents service
"""
_EMPTY = frozenset(_EMPTY_TEXT.split())


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text, in lower case and without common English endings."""
    spread = _CAMEL.sub(" ", text)
    found = (_stem(word) for word in _WORD.findall(spread.casefold()))
    return frozenset(found)


def need_of(text: str) -> frozenset[str]:
    """Return the words of a need that say what it is; all of them if none does."""
    words = _WORD.findall(_CAMEL.sub(" ", text).casefold())[:MAX_WORDS]
    telling = [word for word in words if word not in _EMPTY]
    return frozenset(map(_stem, telling or words))


def match(need: frozenset[str], entry: CatalogEntry) -> float:
    """Return how well an entry meets a need by its words, 0 to 1.

    A word in the name, the queries, tags or capabilities counts whole; one in the description or
    the identifier counts less, and less again one that is only alike (convert, conversion).
    """
    if not need:
        return 0.0
    queries = " ".join(entry.representative_queries)
    named = words_of(" ".join((entry.display_name, queries, *entry.tags, *entry.capabilities)))
    described = words_of(f"{entry.description} {entry.identifier}")
    points = 0.0
    for word in need:
        if word in named:
            points += 1.0
        elif word in described:
            points += 0.7
        elif any(_are_alike(word, each) for each in (*named, *described)):
            points += 0.5
    return points / len(need)


def _are_alike(one: str, other: str) -> bool:
    """Return whether two words begin with the same letters, but for a fifth of the longer one."""
    if one[0] != other[0]:
        return False
    longer = max(len(one), len(other))
    shared = math.ceil(longer * 0.8)
    has_beginning = longer > _SHORTEST + 2 and one[:shared] == other[:shared]
    return has_beginning or is_misspelling(one, other)


def is_misspelling(one: str, other: str) -> bool:
    """Return whether two words of five letters or more differ in one letter, or in the order of two
    neighbours, after the first two letters.
    """
    if min(len(one), len(other)) < MISSPELLED_FROM or abs(len(one) - len(other)) > 1:
        return False
    if one[:2] != other[:2] or one == other or not (one.isalpha() and other.isalpha()):
        return False
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), -1)
    if at < 0:  # the longer one has one letter more at its end
        return True
    if len(one) == len(other):
        is_swapped = (
            one[at : at + 2] == other[at : at + 2][::-1] and one[at + 2 :] == other[at + 2 :]
        )
        return is_swapped or one[at + 1 :] == other[at + 1 :]
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    return longer[at + 1 :] == shorter[at:]


def _stem(word: str) -> str:
    if not word.endswith(_ALL_ENDINGS):
        return word
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST:
            return word.removesuffix(ending)
    return word.removesuffix("e") if len(word) > _SHORTEST else word
