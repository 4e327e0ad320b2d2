"""The indexed words of texts, and the words of a need.

Case, diacritics and endings are removed; names in camel case, with hyphens or underscores are
indexed in parts and as a whole, and texts without spaces (Chinese, Japanese, Korean, Thai) as pairs
of letters. A word has letters, digits and marks only: no user text can be search syntax.

English words are indexed by their stems (Snowball's English algorithm): ``translate``,
``translator`` and ``translation`` match each other. Words of other languages lose at most an
ending. A word of a need also matches its synonyms (``synonyms.txt``).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

MAX_WORDS = 1_500
"""The most words of an entry's texts that are indexed, for each weight."""

MAX_LENGTH = 40
"""The length limit of an indexed word."""

MAX_ASKED = 32
"""The most words of a need that are searched for: the rarest."""

MAX_READ = 400
"""The most words of a need that are read."""

MISSPELLED_FROM = 5
"""The shortest word that is corrected."""

_UNSPACED = (
    "\u0e00-\u0e7f\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u3040-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_MARKS = "\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0971-\u0dff\u0f18-\u0fbc"
_TOKEN = re.compile(
    rf"([{_UNSPACED}]+)|((?:[^\W_{_UNSPACED}]|[{_MARKS}])+)(?:['\u2019](?:s|t|re|ve|ll|d|m)\b)?"
)
_ASCII_TOKEN = re.compile(r"([^\W_]+)(?:'(?:s|t|re|ve|ll|d|m)\b)?", re.ASCII)
_COMPOUND = re.compile(r"[^\W_]+(?:[-_][^\W_]+)+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ACCENTS = re.compile("[\u0300-\u036f]+")
_SIGNS = {"c++": " cplusplus ", "c#": " csharp ", "f#": " fsharp ", ".net": " dotnet "}
_SIGN = re.compile(r"(?i)(?<!\w)(?:c\+\+|[cf]#|\.net(?!\w))")


def words_of(text: str, *, all_words: bool = True) -> list[str]:
    """Return the words of a text in order; without stop words, unless ``all_words``."""
    tokens = _tokens(text, is_asked=False)
    if not all_words:
        tokens = [each for each in tokens if each[0] not in FUNCTION_WORDS]
    return [word for _, word in tokens[:MAX_WORDS]]


def asked_words(text: str) -> list[str]:
    """Return the distinct words of a need, in order; without words of typical questions, unless
    there are no others.
    """
    every: dict[str, None] = {}
    telling: dict[str, None] = {}
    for plain, word in _tokens(text, is_asked=True)[:MAX_READ]:
        every[word] = None
        if plain not in ASKING_WORDS:
            telling[word] = None
    return list(telling or every)


def is_beginning(word: str, entries: int) -> bool:
    """Return whether a word may match as a prefix: no entry has it, or it is a single letter of a
    script without spaces.
    """
    if re.fullmatch(f"[{_UNSPACED}]", word):
        return True
    return not entries and len(word) > 2 and not re.match(f"[{_UNSPACED}]", word)


def is_misspelling(one: str, other: str) -> bool:
    """Return whether two words of five letters or more differ in one letter, or in the order of two
    neighbouring letters, after the first two letters.
    """
    if min(len(one), len(other)) < MISSPELLED_FROM or one[:2] != other[:2] or one == other:
        return False
    if not (one.isalpha() and other.isalpha()):
        return False
    shared = min(len(one), len(other))
    at = next((n for n in range(shared) if one[n] != other[n]), shared)
    mine, theirs = one[at:], other[at:]
    is_swapped = mine[:2] == theirs[:2][::-1] and mine[2:] == theirs[2:]
    return is_swapped or theirs[1:] in (mine, mine[1:]) or mine[1:] == theirs


def folded(text: str) -> str:
    """Return a text without diacritics, with compatible forms of letters unified."""
    if text.isascii():
        return text
    apart = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    return unicodedata.normalize("NFC", apart)


def _tokens(text: str, *, is_asked: bool) -> list[tuple[str, str]]:
    """Return words in lower case (upper case is kept: ``US`` is not ``us``), and in their indexed
    form.
    """
    if text.isupper():
        text = text.lower()
    found: list[tuple[str, str]] = []
    text = folded(text)
    if "#" in text or "+" in text or "." in text:
        text = _SIGN.sub(lambda sign: _SIGNS[sign[0].lower()], text)
    if text.isascii():
        for word in _ASCII_TOKEN.findall(text):
            found += _forms(word)
    else:
        for unspaced, word in _TOKEN.findall(text):
            if word:
                found += _forms(word)
                continue
            found += [(pair, pair) for pair in map("".join, pairwise(unspaced))]
            if not is_asked or len(unspaced) == 1:
                found.append((unspaced[-1], unspaced[-1]))
    for compound in _COMPOUND.findall(text) if "-" in text or "_" in text else ():
        whole = re.sub("[-_]", "", compound).casefold()
        if len(whole) <= MAX_LENGTH // 2:
            found.append((whole, _indexed(whole)))
    return found


@lru_cache(maxsize=1 << 15)
def _forms(word: str) -> tuple[tuple[str, str], ...]:
    """Return the parts of a word in camel case, and the word itself."""
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


def _lines(name: str) -> list[str]:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _listed(name: str) -> frozenset[str]:
    return frozenset(folded(word) for line in _lines(name) for word in line.split())


FUNCTION_WORDS = _listed("function_words.txt")
ASKING_WORDS = FUNCTION_WORDS | _listed("asking_words.txt")


@cache
def synonyms() -> Mapping[str, Sequence[str]]:
    """Return the synonyms of words, all in their indexed form."""
    found: dict[str, dict[str, None]] = {}
    for line in _lines("synonyms.txt"):
        left, _, right = line.partition(">")
        asked, meant = words_of(left), words_of(right or left)
        for word in asked:
            found.setdefault(word, {}).update(dict.fromkeys(meant))
    return {word: [each for each in meant if each != word] for word, meant in found.items()}


@cache
def _stemmer() -> Any:
    import snowballstemmer  # this import takes a tenth of a second

    return snowballstemmer.stemmer("english")


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return the stem of an English word in lower case; other words unchanged."""
    if not 2 < len(word) <= MAX_LENGTH or not (word.isascii() and word.isalpha()):
        return word
    return str(_stemmer().stemWord(word))
