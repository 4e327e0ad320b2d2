"""The texts of an entry that searches look at, by how much they say of what it is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from parley.model.cards import AgentCard
from parley.model.catalog.entries import CATALOG, CatalogEntry
from parley.model.catalog.urn import AirUrn, InvalidUrn

MAX_TEXT = 16_000
"""How long the texts of one weight are together; the rest is neither searched nor checked."""

MAX_DEPTH = 8
MAX_PIECES = 2_000

WEIGHTS = ("A", "B", "C", "D")

_NAMES = ("name", "title", "id", "tags", "keywords")
_DESCRIPTIONS = ("description", "summary", "instructions")
_BELOW_SCHEMA = "-"
_SCHEMA = ("schema", "properties", "signatures", "security")


def texts_of(entry: CatalogEntry, card: AgentCard | None = None) -> Mapping[str, str]:
    """Return the texts of an entry by weight, each piece once, where it weighs most.

    ``A`` has the name and the representative queries, ``B`` tags, capabilities, and the names, tags
    and examples of skills, ``C`` descriptions, ``D`` the rest: the provider, the parts of the
    identifier, metadata, and members that are not known. Texts are as they were read, hidden
    characters included, so that ``marks_of`` sees them.
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
    """Return the names in an identifier, without the end of its domain."""
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
    """Return the weight of a member; nothing below a schema weighs more than ``D``."""
    if weight == _BELOW_SCHEMA or any(part in name for part in _SCHEMA):
        return _BELOW_SCHEMA
    if isinstance(value, str | list) and name in _NAMES:
        return "B"
    return "C" if isinstance(value, str) and name in _DESCRIPTIONS else "D"
