"""Stems of English words, by Porter's algorithm (1980).

``currency`` and ``currencies``, ``translate``, ``translator`` and ``translation`` are found by each
other. Words of other languages lose an ending at most, in texts and in needs alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

LONGEST = 40

_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize",
    "bli": "ble", "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize",
    "ation": "ate", "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful",
    "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {
    "icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": "",
}  # fmt: skip
_STEP_4 = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous",
    "ive", "ize", "ion", "al", "er", "ic", "ou",
)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return the stem of a word in lower case; other words than English ones as they are."""
    if not 2 < len(word) <= LONGEST or not (word.isascii() and word.isalpha()):
        return word
    word = _without_plural(word)
    word = _without_past(word)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, _STEP_2)
    word = _replaced(word, _STEP_3)
    return _without_e(_without_suffix(word))


def _is_consonant(word: str, at: int) -> bool:
    letter = word[at]
    if letter in "aeiou":
        return False
    return letter != "y" or at == 0 or not _is_consonant(word, at - 1)


def _measure(part: str) -> int:
    """Return how often a consonant follows a vowel."""
    kinds = [_is_consonant(part, at) for at in range(len(part))]
    return sum([not before and after for before, after in pairwise(kinds)])


def _has_vowel(part: str) -> bool:
    return any(not _is_consonant(part, at) for at in range(len(part)))


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _is_consonant(word, len(word) - 1)


def _ends_short(word: str) -> bool:
    """Return whether a word ends like ``hop``: consonant, vowel, consonant (not w, x, y)."""
    end = len(word) - 1
    return (
        end > 1
        and _is_consonant(word, end)
        and not _is_consonant(word, end - 1)
        and _is_consonant(word, end - 2)
        and word[end] not in "wxy"
    )


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _without_past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        part = word.removesuffix(suffix)
        if part != word and _has_vowel(part):
            if part.endswith(("at", "bl", "iz")):
                return part + "e"
            if _ends_double(part) and part[-1] not in "lsz":
                return part[:-1]
            return part + "e" if _measure(part) == 1 and _ends_short(part) else part
    return word


def _replaced(word: str, endings: dict[str, str]) -> str:
    found = _longest(endings, word.endswith)
    if found and _measure(word.removesuffix(found)) > 0:
        return word.removesuffix(found) + endings[found]
    return word


def _longest(endings: dict[str, str], is_end: Callable[[str], bool]) -> str:
    return max(filter(is_end, endings), key=len, default="")


def _without_suffix(word: str) -> str:
    for suffix in _STEP_4:
        if word.endswith(suffix):
            part = word.removesuffix(suffix)
            if _measure(part) > 1 and (suffix != "ion" or part.endswith(("s", "t"))):
                return part
            return word
    return word


def _without_e(word: str) -> str:
    if word.endswith("e"):
        part = word[:-1]
        measure = _measure(part)
        if measure > 1 or (measure == 1 and not _ends_short(part)):
            word = part
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word
