"""Drafts made ready to be stored: encoded, digested, split into words and values.

This takes longer than the writing, and needs no transaction. Values of fields are compared without
regard to case, as numbers, as times.

Both databases index the words made here, and are asked for them: case, diacritics and endings are
gone, names in camel case, with hyphens or underscores are there in parts and as a whole, and texts
without spaces (Chinese, Japanese, Korean, Thai) as pairs of letters. A word has letters, digits and
marks only, so that no text of a user can be syntax of a database.

English words are indexed by their stems (Porter's algorithm, 1980): ``translate``, ``translator``
and ``translation`` find each other. Words of other languages lose an ending at most.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b, sha256
from importlib.resources import files
from itertools import pairwise
from typing import Any

import msgspec

from parley.registry.catalog.entries import A2A_CARD_TYPES, MAX_URN
from parley.registry.records import (
    AUTHORITIES,
    AgentHealth,
    EntryDraft,
    EntryStanding,
    Liveness,
    Trust,
)

# The words that texts are found by, and the words of a need.

LONGEST_WORD = 40

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
    if not 2 < len(word) <= LONGEST_WORD or not (word.isascii() and word.isalpha()):
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


MAX_FIELD = 200
MAX_VALUE = 1_000
MAX_VALUES = 2_000
"""How many values of an entry are indexed, each within so many characters."""

HEALTH_FIELD = "observed.health"
LIVENESS_FIELD = "observed.liveness"
"""The fields of observations of an agent; no draft changes their values."""

_NUMBER = re.compile(r"[+-]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][+-]?\d{1,3})?")
_NUL = "\x00"


class Term(msgspec.Struct, frozen=True, rename={"id": "term_id"}):
    """A value of a field path, as it is indexed."""

    id: int
    field: str
    value: str
    normalized: str
    number: float | None
    instant: int | None


def clean(text: str) -> str:
    """Return a text that every database can hold: without NUL and halves of surrogate pairs."""
    if text.isascii():
        return text.replace(_NUL, "\ufffd") if _NUL in text else text
    return text.encode("utf-8", "replace").decode().replace(_NUL, "\ufffd")


def cleaned(value: Any) -> Any:
    """Return JSON values with texts that every database can hold."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(name): cleaned(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value


def normalized(value: str) -> str:
    """Return a value as it is compared: case, width and spaces make no difference."""
    value = clean(value[:MAX_VALUE])
    if not value.isascii():
        value = unicodedata.normalize("NFKC", value)
    return " ".join(value.casefold().split())


def term_id(field: str, normal: str) -> int:
    """Return the id of a normalized value of a field path."""
    digest = blake2b(f"{field}\n{normal}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@lru_cache(maxsize=1 << 14)
def term(field: str, value: str) -> Term:
    """Return a value of a field path as it is indexed."""
    field = clean(field[:MAX_FIELD])
    normal = normalized(value)
    number = number_in(normal)
    return Term(
        term_id(field, normal),
        field,
        clean(value[:MAX_VALUE]),
        normal,
        number,
        instant_in(normal) if number is None else None,
    )


def number_in(text: str) -> float | None:
    """Return the number that a text is."""
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def instant_in(text: str) -> int | None:
    """Return the time that a text is (ISO 8601, UTC unless it says otherwise), in ms since 1970."""
    if not text[:4].isdigit() or len(text) > 40 or len(text) < 8:
        return None
    try:
        time = datetime.fromisoformat(text.upper())
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return round(time.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


OBSERVED_TERMS = frozenset(
    [
        *[term_id(HEALTH_FIELD, each.value) for each in AgentHealth],
        *[term_id(LIVENESS_FIELD, each.value) for each in Liveness],
    ]
)
"""The ids of all values of the fields of observations."""


MAX_SOURCE_BYTES = 2_000
MAX_AUDIENCE = 1_000
MAX_TOKEN = 500
ORDERED_BY = 200
"""How many characters of a value decide on its place in a list."""

WEIGHTS = ("A", "B", "C", "D")

_FOUND_OUT = ("registry.", "observed.")
"""Beginnings of the paths of the registry's findings: a publisher cannot write them."""

_ENCODER = msgspec.json.Encoder()
_CANONICAL = msgspec.json.Encoder(order="deterministic")


class Prepared(msgspec.Struct, frozen=True):
    """A draft as its rows need it."""

    draft: EntryDraft
    place: bytes
    digest: bytes
    document: bytes
    standing: EntryStanding
    reason: str
    card_digest: str
    terms: Mapping[int, Term]
    words: Mapping[str, Sequence[str]]

    @property
    def different_words(self) -> set[str]:
        """The words of all weights, each once."""
        return {word for words in self.words.values() for word in words}

    @property
    def is_probed(self) -> bool:
        """Whether it is an agent that can be probed."""
        return self.draft.type in A2A_CARD_TYPES

    def columns(self) -> dict[str, object]:
        """Return the columns that only the draft decides."""
        draft = self.draft
        return {
            "place": self.place,
            "identifier": draft.identifier,
            "source": draft.source,
            "publisher": draft.publisher[:300],
            "name": normalized(str(draft.entry.get("displayName", "")))[:ORDERED_BY],
            "type": draft.type[:ORDERED_BY],
            "version": draft.version[:ORDERED_BY],
            "authority": AUTHORITIES.index(draft.authority),
            "trust": draft.trust.value,
            "owner": draft.owner,
            "is_public": not draft.audience,
            "is_probed": self.is_probed,
            "digest": self.digest,
            "card_digest": self.card_digest,
        }


def prepare(draft: EntryDraft) -> Prepared:
    """Make a draft ready. Raises ``ValueError`` for one that no index can hold."""
    _check(draft)
    card, standing, reason = draft.card, draft.standing, draft.reason
    draft = _cleaned(msgspec.structs.replace(draft, card=None))
    if standing is EntryStanding.SHADOWED:
        standing = EntryStanding.LISTED
    if standing is EntryStanding.LISTED and draft.trust is Trust.FAILED:
        standing = EntryStanding.REJECTED
        reason = draft.trust_reason or "a signature does not hold"
    document = _ENCODER.encode(draft)
    digest = blake2b(_CANONICAL.encode(draft), digest_size=16)
    digest.update(card or b"")
    return Prepared(
        draft=draft,
        place=place_of(draft.identifier, draft.source),
        digest=digest.digest(),
        document=document,
        standing=standing,
        reason=clean(reason),
        card_digest=_card_digest(draft, card),
        terms=_terms(draft),
        words={weight: _words(draft.texts, weight) for weight in WEIGHTS},
    )


def _card_digest(draft: EntryDraft, card: bytes | None) -> str:
    if card is None:
        return ""
    return draft.card_digest or f"sha256:{sha256(card).hexdigest()}"


def place_of(identifier: str, source: str) -> bytes:
    """Return the digest of an identifier and a source: an index of any database can hold it."""
    return blake2b(f"{identifier}\n{source}".encode(), digest_size=16).digest()


def _check(draft: EntryDraft) -> None:
    if not draft.identifier or len(draft.identifier) > MAX_URN:
        raise ValueError(
            f"{draft.identifier[:80]!r}: an identifier has 1 to {MAX_URN} characters, not "
            f"{len(draft.identifier)}"
        )
    size = len(draft.source.encode("utf-8", "replace"))
    if not 0 < size <= MAX_SOURCE_BYTES:
        raise ValueError(
            f"{draft.identifier}: the address of a source has 1 to {MAX_SOURCE_BYTES} bytes, not "
            f"{size}"
        )
    tokens = draft.audience
    if len(tokens) > MAX_AUDIENCE or any(len(token) > MAX_TOKEN for token in tokens):
        raise ValueError(
            f"{draft.identifier}: an audience has up to {MAX_AUDIENCE} tokens of up to {MAX_TOKEN} "
            "characters"
        )


def _cleaned(draft: EntryDraft) -> EntryDraft:
    """Return a draft whose texts every database can hold."""
    changed = {
        name: clean(value)
        for name in draft.__struct_fields__
        if type(value := getattr(draft, name)) is str and clean(value) != value
    }
    audience = tuple(clean(token) for token in draft.audience)
    if changed or audience != draft.audience:
        draft = msgspec.structs.replace(draft, **changed, audience=audience)
    try:
        _ENCODER.encode(draft)
    except UnicodeEncodeError:
        draft = msgspec.structs.replace(
            draft,
            entry=cleaned(dict(draft.entry)),
            fields=cleaned(dict(draft.fields)),
            texts=cleaned(dict(draft.texts)),
            marks=tuple(clean(mark) for mark in draft.marks),
        )
    return draft


def _terms(draft: EntryDraft) -> dict[int, Term]:
    fields: dict[str, Sequence[str]] = {
        "identifier": (draft.identifier,),
        "displayName": (str(draft.entry.get("displayName", "")),),
        "publisher": (draft.publisher,),
        "type": (draft.type,),
        "version": (draft.version,),
        "registry.trust": (draft.trust.value,),
        "registry.marks": draft.marks,
        **{path: draft.fields[path] for path in draft.fields if not path.startswith(_FOUND_OUT)},
    }
    terms: dict[int, Term] = {}
    for field, values in fields.items():
        for value in values:
            if value and len(terms) < MAX_VALUES:
                found = term(field, value)
                terms.setdefault(found.id, found)
    return terms


def _words(texts: Mapping[str, str], weight: str) -> list[str]:
    return words_of(texts.get(weight, ""), all_words=weight in "AB")
