"""The words that texts are found by, and those of a need.

Both databases index what comes out of here, and are asked for it: case, diacritics and endings are
gone, names in camel case, with hyphens or underscores are there in parts and as a whole, and texts
without spaces (Chinese, Japanese, Korean, Thai) as pairs of letters. A word has letters, digits and
marks only, so that no text of a user can be syntax of a database.

English words are indexed by their stems (Porter's algorithm, 1980): ``translate``, ``translator``
and ``translation`` find each other. Words of other languages lose an ending at most.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.resources import files
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


MAX_WORDS = 1_500
"""How many words of an entry's texts are indexed, of each weight: PostgreSQL takes 1 MB."""

MAX_LENGTH = 40
"""How long an indexed word is."""

MAX_ASKED = 32
"""How many words of a need are looked for: the rarest."""

MAX_READ = 400
"""How many words of a need are read."""

_UNSPACED = (
    "\u0e00-\u0e7f\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u3040-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_MARKS = "\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0971-\u0dff\u0f18-\u0fbc"
_TOKEN = re.compile(
    rf"([{_UNSPACED}]+)|((?:[^\W_{_UNSPACED}]|[{_MARKS}])+)(?:['\u2019](?:s|t|re|ve|ll|d|m)\b)?"
)
_COMPOUND = re.compile(r"[^\W_]+(?:[-_][^\W_]+)+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ACCENTS = re.compile("[\u0300-\u036f]+")
_SIGNS = {"c++": " cplusplus ", "c#": " csharp ", "f#": " fsharp ", ".net": " dotnet "}
_SIGN = re.compile(r"(?i)(?<!\w)(?:c\+\+|[cf]#|\.net(?!\w))")


def words_of(text: str, *, all_words: bool = True) -> list[str]:
    """Return the words of a text in order; without those that say nothing if not ``all_words``."""
    found: list[str] = []
    for plain, word in _tokens(text, is_asked=False):
        if all_words or plain not in FUNCTION_WORDS:
            found.append(word)
            if len(found) >= MAX_WORDS:
                break
    return found


def asked_words(text: str) -> list[str]:
    """Return the different words of a need, in order; without those that needs are asked with, if
    there are others.
    """
    every: dict[str, None] = {}
    telling: dict[str, None] = {}
    for count, (plain, word) in enumerate(_tokens(text, is_asked=True)):
        if count >= MAX_READ:
            break
        every[word] = None
        if plain not in ASKING_WORDS:
            telling[word] = None
    return list(telling or every)


def is_beginning(word: str, entries: int) -> bool:
    """Return whether a word stands for those that begin with it: one that no entry has, or a single
    letter of a script without spaces.
    """
    if re.fullmatch(f"[{_UNSPACED}]", word):
        return True
    return not entries and len(word) > 2 and not re.match(f"[{_UNSPACED}]", word)


def folded(text: str) -> str:
    """Return a text without diacritics, with compatible forms of letters made the same."""
    if text.isascii():
        return text
    apart = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    return unicodedata.normalize("NFC", apart)


def _tokens(text: str, *, is_asked: bool) -> Iterator[tuple[str, str]]:
    """Yield words in lower case (upper case is kept: ``US`` is not ``us``), and as indexed."""
    if text.isupper():
        text = text.lower()
    text = _SIGN.sub(lambda sign: _SIGNS[sign[0].lower()], folded(text))
    for match in _TOKEN.finditer(text):
        unspaced, word = match.groups()
        if unspaced is None:
            yield from _forms(word)
            continue
        for at in range(len(unspaced) - 1):
            yield unspaced[at : at + 2], unspaced[at : at + 2]
        if not is_asked or len(unspaced) == 1:
            yield unspaced[-1], unspaced[-1]
    for match in _COMPOUND.finditer(text):
        whole = re.sub("[-_]", "", match[0]).casefold()
        if len(whole) <= MAX_LENGTH // 2:
            yield whole, _indexed(whole)


@lru_cache(maxsize=1 << 15)
def _forms(word: str) -> tuple[tuple[str, str], ...]:
    """Return a word, after its parts if it is in camel case."""
    word = word[: 4 * MAX_LENGTH]
    whole = word.casefold()
    if word.isupper() and len(word) > 1:
        return ((word, _indexed(whole)),)
    parts = [part.casefold() for part in _CAMEL.split(word)]
    if len(parts) == 1:
        return ((whole, _indexed(whole)),)
    return (*((part, _indexed(part)) for part in parts), (whole, _indexed(whole)))


def _indexed(plain: str) -> str:
    return stem(plain)[:MAX_LENGTH]


def _listed(name: str) -> frozenset[str]:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return frozenset(folded(word) for line in lines for word in line.split())


FUNCTION_WORDS = _listed("function_words.txt")
ASKING_WORDS = FUNCTION_WORDS | _listed("asking_words.txt")
