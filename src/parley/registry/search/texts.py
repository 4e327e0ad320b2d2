"""The searched texts of an entry, weighted by relevance; and marks of texts that try to instruct a
language model.

Texts of entries are untrusted data, and nothing here follows them. A program can check an entry's
marks before it shows the entry to a model. A mark is a finding, not an intent: a scanner that
quotes an attack is marked too. Texts are scanned in the form that a model may read: without hidden
characters, with look-alikes of Latin letters replaced, and with tag characters and HTML entities
decoded.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Any

from parley.model.cards import AgentCard
from parley.registry.catalog.entries import CATALOG, AirUrn, CatalogEntry, InvalidUrn

# Marks of texts that try to instruct a language model.

MAX_SCANNED = 64_000
"""The number of characters of all texts together scanned."""

MARKS = (
    "instructions", "preference", "concealment", "secrets", "tools", "roles", "markup",
    "hidden-characters", "bidi", "control-characters", "encoded", "long",
)  # fmt: skip
"""All marks, in the order of ``marks_of``; docs/guides/registry/search.md explains them."""


def marks_of(texts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the marks of an entry's texts, in the order of ``MARKS``."""
    found: set[str] = set()
    left = MAX_SCANNED
    for text in texts.values():
        if len(text) >= MAX_TEXT or len(text) > left:
            found.add("long")
        text, left = text[:left], left - min(left, len(text))
        found.update(_scan(text))
    return tuple(mark for mark in MARKS if mark in found)


def _scan(text: str) -> Iterator[str]:
    yield from _characters(text)
    plain = readable(text)
    for mark, patterns in _PATTERNS.items():
        # A sentence may span lines; chat tags and markup begin lines.
        read = plain.replace("\n", " ") if mark in _SENTENCES else plain
        if mark in _NEEDED and not any(part in read for part in _NEEDED[mark]):
            continue
        if any(
            mark not in _SENTENCES or not _is_denied(part, match.start())
            for part in dict.fromkeys((plain, read))
            for pattern in patterns
            for match in pattern.finditer(part)
        ):
            yield mark
    if len(set(_LABEL.findall(plain))) > 1:
        yield "roles"


# Characters

_TAGS = re.compile("[\U000e0000-\U000e007f]+")
_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007e]{1,6}\U000e007f")
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef]"
)
_HIDDEN = re.compile(
    "[A-Za-z][\u200b-\u200d\u2060-\u2064\ufeff\u00ad]+[A-Za-z][\u200b-\u200d\u2060-\u2064\ufeff]"
    "|[\u200b\u2060-\u2064\ufeff]{2,}|[\u200c\u200d]{2,}|[\u2061-\u2064\u206a-\u206f\u3164\uffa0]"
    "|[\u200b-\u200d\u2060-\u2064\ufeff](?=[A-Za-z]{2})(?<=[A-Za-z]{2}.)"
    "|[\ufe00-\ufe0f]{2,}|[\U000e0100-\U000e01ef]{2,}|[!-~][\U000e0100-\U000e01ef]"
)
_OVERRIDES = re.compile("[\u202d\u202e]")
_DIRECTIONS = re.compile("[\u202a\u202b\u2066-\u2068]")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f]")


def _characters(text: str) -> Iterator[str]:
    if not text.isascii():
        if _TAGS.search(_FLAG.sub("", text)) or _HIDDEN.search(text):
            yield "hidden-characters"
        is_turned = _DIRECTIONS.search(text) and not _RIGHT_TO_LEFT.search(text)
        if is_turned or _OVERRIDES.search(text):
            yield "bidi"
    if _CONTROLS.search(text):
        yield "control-characters"


_LOOKALIKES = str.maketrans(
    "абвеԁгһіјкӏмпорсԛѕтуԝхАВЕНІЈКМОРЅТХСЗανεικορτυχγΑΒΕΗΙΚΜΝΟΡΤΥΧΖ",
    "abBedrhijklmnopcqstywxABEHIJKMOPSTXC3aveikoptuxyABEHIKMNOPTYXZ",
)
_MIXED = re.compile(r"[^\W\d_]+")
_SPELLED = re.compile(r"\b(?:[A-Za-z][ .\-_*]){5,}[A-Za-z]\b")


def readable(text: str) -> str:
    """Return a text in the form that a model may read, with the same lines, in lower case."""
    if not text.isascii():
        spelled = [
            "".join(chr(ord(sign) - 0xE0000) for sign in tags if ord(sign) > 0xE001F)
            for tags in _TAGS.findall(text)
        ]
        text = _INVISIBLE.sub("", text)
        text = unicodedata.normalize("NFKC", text)
        if spelled:
            text = f"{text}\n{' '.join(spelled)}"
        text = _MIXED.sub(_latin, text)
    if "&" in text:
        text = html.unescape(text)
    if re.search(r"\b\w[ .\-_*]\w[ .\-_*]\w[ .\-_*]\w", text):
        text = _SPELLED.sub(lambda match: re.sub(r"[ .\-_*]", "", match[0]), text)
    return re.sub(r"[^\S\n]+", " ", text.lower())


def _latin(word: re.Match[str]) -> str:
    """Return a word with look-alikes replaced, if it also has Latin letters."""
    text = word[0]
    if text.isascii() or not any("a" <= sign <= "z" for sign in text.lower()):
        return text
    return text.translate(_LOOKALIKES)


# Sentences

_LABEL = re.compile(r"(?:^|\n)[ *_#]{0,4}(system|assistant|human|user|ai)[ *_]{0,2}:")


_NEEDED: dict[str, tuple[str, ...]] = {}
"""Substrings of which a text must contain at least one before a mark is searched for."""


def _read_patterns() -> Mapping[str, tuple[re.Pattern[str], ...]]:
    """Read ``marks.txt``."""
    text = files(__package__).joinpath("marks.txt").read_text(encoding="utf-8")
    parts: dict[str, str] = {}
    found: dict[str, tuple[re.Pattern[str], ...]] = {}
    for line in text.splitlines():
        name, _, pattern = line.partition(" ")
        if not pattern or name == "#":
            continue
        if name == "?":
            mark, *needed = pattern.split()
            _NEEDED[mark] = tuple(part.replace("_", " ") for part in needed)
            continue
        for part, value in parts.items():
            pattern = pattern.replace(part, value)
        if name.startswith("{"):
            parts[name] = pattern
        else:
            found[name] = (*found.get(name, ()), re.compile(pattern, re.MULTILINE))
    return found


_PATTERNS = _read_patterns()
_SENTENCES = ("instructions", "preference", "concealment", "secrets", "tools")
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot|without)|n't)(?: to| from)? $"
    r"|\b(?:detect|prevent|block|stop|avoid|refuse|resist|flag)(?:s|ing)? (?:\w+ ){0,5}$"
    r"|\b(?:attempts?|trying|tries) to $"
)


def _is_denied(text: str, at: int) -> bool:
    """Return whether a match is negated, or describes something that is detected or prevented."""
    return bool(_DENIED.search(text[max(0, at - 60) : at]))


MAX_TEXT = 16_000
"""The length limit of the texts of one weight; the rest is neither searched nor scanned."""

MAX_DEPTH = 8
MAX_PIECES = 2_000

WEIGHTS = ("A", "B", "C", "D")

_NAMES = ("name", "title", "id", "tags", "keywords")
_DESCRIPTIONS = ("description", "summary", "instructions")
_BELOW_SCHEMA = "-"
_SCHEMA = ("schema", "properties", "signatures", "security")


def texts_of(entry: CatalogEntry, card: AgentCard | None = None) -> Mapping[str, str]:
    """Return the texts of an entry by weight, each piece once, at its highest weight.

    ``A`` has the name and the representative queries, ``B`` tags, capabilities, and the names, tags
    and examples of skills, ``C`` descriptions, ``D`` the rest: the provider, the parts of the
    identifier, metadata, and unknown members. Texts are unchanged, including hidden characters, so
    that ``marks_of`` sees them.
    """
    pieces = _Pieces()
    pieces.add("A", [entry.display_name, *entry.representative_queries])
    pieces.add("B", [*entry.tags, *entry.capabilities])
    if card is not None:
        _add_card(pieces, card)
    elif entry.data is not None and entry.type != CATALOG:
        pieces.walk("D", entry.data)
    pieces.add("C", [entry.description])
    pieces.add("D", _parts(entry.identifier))
    pieces.walk("D", entry.metadata)
    pieces.walk("D", entry.more)
    return pieces.texts()


def _add_card(pieces: _Pieces, card: AgentCard) -> None:
    if card.name.casefold() not in pieces.known:
        pieces.add("B", [card.name])
    for skill in card.skills:
        pieces.add("B", [skill.name, *skill.tags, *skill.examples])
    pieces.add("C", [card.description, *(skill.description for skill in card.skills)])
    pieces.add("D", [skill.id for skill in card.skills])
    if card.provider is not None:
        pieces.add("D", [card.provider.organization])
    for scheme in card.security_schemes.values():
        pieces.walk("D", {"description": _description(scheme)})
    pieces.add("D", [each.description for each in card.capabilities.extensions])


def _description(scheme: Any) -> str:
    for field in scheme.__struct_fields__:
        held = getattr(getattr(scheme, field), "description", "")
        if isinstance(held, str) and held:
            return held
    return ""


def _parts(identifier: str) -> list[str]:
    """Return the names in an identifier, without the top-level part of its domain."""
    try:
        urn = AirUrn.parse(identifier)
    except InvalidUrn:
        return []
    return [" ".join([*urn.publisher.split(".")[:-1], *urn.namespace, urn.name])]


class _Pieces:
    """Texts by weight, each once, bounded in number and length."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self._pieces: dict[str, list[str]] = {weight: [] for weight in WEIGHTS}

    def add(self, weight: str, texts: Iterable[str]) -> None:
        """Add texts to a weight."""
        for text in texts:
            piece = text.strip()
            plain = piece.casefold()
            if piece and plain not in self.known and len(self.known) < MAX_PIECES:
                self.known.add(plain)
                self._pieces[weight].append(piece)

    def walk(self, weight: str, value: Any, depth: int = 0) -> None:
        """Add the texts in a JSON value: names as ``B``, descriptions as ``C``."""
        if isinstance(value, str):
            self.add("D" if weight == _BELOW_SCHEMA else weight, [value])
        elif isinstance(value, list | tuple) and depth < MAX_DEPTH:
            for each in value[:MAX_PIECES]:
                self.walk(weight, each, depth + 1)
        elif isinstance(value, Mapping) and depth < MAX_DEPTH:
            for name, each in list(value.items())[:MAX_PIECES]:
                self.walk(_weight(str(name).lower(), each, weight), each, depth + 1)

    def texts(self) -> dict[str, str]:
        """Return the texts, each cut at the limit."""
        return {
            weight: "\n".join(pieces)[:MAX_TEXT]
            for weight, pieces in self._pieces.items()
            if pieces
        }


def _weight(name: str, value: Any, weight: str) -> str:
    """Return the weight of a member; members below a schema weigh at most ``D``."""
    if weight == _BELOW_SCHEMA or any(part in name for part in _SCHEMA):
        return _BELOW_SCHEMA
    if isinstance(value, str | list) and name in _NAMES:
        return "B"
    return "C" if isinstance(value, str) and name in _DESCRIPTIONS else "D"
