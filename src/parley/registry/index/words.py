"""The words that texts are found by, and those of a need.

Both databases index what comes out of here, and are asked for it: case, diacritics and endings are
gone, names in camel case, with hyphens or underscores are there in parts and as a whole, and texts
without spaces (Chinese, Japanese, Korean, Thai) as pairs of letters. A word has letters, digits and
marks only, so that no text of a user can be syntax of a database.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files

from parley.registry.index.stems import stem

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
