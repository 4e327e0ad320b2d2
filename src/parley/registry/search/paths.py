"""Field paths of entries: what filters, facets and orders may name.

Any member of an entry can be filtered by, nested ones by a path with dots, and so can what the
registry derives: ``publisher``, ``source``, ``host.*`` and ``card.*``. A path that no entry has
matches nothing: the members of entries are open. Long texts are no values; they are searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from parley.model.catalog.entries import A2A_CARD, A2A_CARD_TYPES, CATALOG, MCP_CARD, REGISTRY_TYPES
from parley.model.errors import InvalidParamsError

MAX_PATH = 128
MAX_DEPTH = 8
MAX_VALUES = 100
MAX_VALUE = 1_000

ALIASES = {
    "publisherId": "publisher",
    "mediaType": "type",
    "skills.id": "card.skills.id",
    "skills.name": "card.skills.name",
    "skills.tags": "card.skills.tags",
    "card.defaultInputModes": "card.modes",
    "card.defaultOutputModes": "card.modes",
    "card.skills.inputModes": "card.modes",
    "card.skills.outputModes": "card.modes",
    "card.supportedInterfaces.protocolBinding": "card.bindings",
    "card.supportedInterfaces.protocolVersion": "card.versions",
    "card.capabilities.extensions.uri": "card.extensions",
    "card.provider.organization": "card.provider",
}
"""Other names of paths: those of Appendix A, and those that values have in an A2A card."""

REGISTRY_TIMES = ("registry.createdAt", "registry.updatedAt")
_OF_REGISTRY = ("registry.trust", "registry.marks", *REGISTRY_TIMES)
"""What a registry found out of an entry, as far as it can be filtered by."""

SEARCHED = ("description", "representativeQueries", "data", "url")
"""Members that are no values."""

_PATH = re.compile(r"[^\s.\x00-\x1f\x7f]+(?:\.[^\s.\x00-\x1f\x7f]+)*")
_SPACED = re.compile(r"[\w.-]+/[\w.-]+ \w+")
"""A media type whose plus sign was read as a space, as in the query of a URL."""

_SHORT_TYPES = {
    "a2a": A2A_CARD, "agent": A2A_CARD, "agents": A2A_CARD, "mcp": MCP_CARD,
    "catalog": CATALOG, "registry": REGISTRY_TYPES[0],
}  # fmt: skip


def checked_path(path: str) -> str:
    """Return the path that a name stands for. Raises ``InvalidParamsError``."""
    if len(path) > MAX_PATH:
        raise InvalidParamsError(
            f"the field path {path[:40]!r}... is longer than {MAX_PATH} characters"
        )
    if not _PATH.fullmatch(path) or path.count(".") >= MAX_DEPTH:
        raise InvalidParamsError(
            f"{path!r} is no field path; use names with dots between them, such as "
            f"trustManifest.attestations.type (at most {MAX_DEPTH} names)"
        )
    if path.partition(".")[0] in SEARCHED:
        raise InvalidParamsError(
            f"entries are not filtered by {path.partition('.')[0]!r}; search for its words with "
            "query.text, or filter by identifier, type, publisher, tags, capabilities, version, "
            "metadata.*, trustManifest.* or card.*"
        )
    if path.partition(".")[0] == "registry" and path not in _OF_REGISTRY:
        raise InvalidParamsError(
            f"entries are not filtered by {path!r}; of what the registry knows, registry.trust and "
            "registry.marks can be"
        )
    return ALIASES.get(path, path)


def checked_values(path: str, values: Iterable[str]) -> tuple[str, ...]:
    """Return the different values to compare with. Raises ``InvalidParamsError``.

    The names that a type of artifact has had stand for each other.
    """
    found = dict.fromkeys(value.strip() for value in values)
    if not found or "" in found:
        raise InvalidParamsError(
            f"{path!r} is compared with nothing; name a value, or leave it out"
        )
    if len(found) > MAX_VALUES:
        raise InvalidParamsError(
            f"{path!r} is compared with {len(found)} values; at most {MAX_VALUES} are"
        )
    if longest := next((value for value in found if len(value) > MAX_VALUE), None):
        raise InvalidParamsError(
            f"a value of {path!r} ({longest[:40]!r}...) is longer than {MAX_VALUE} characters"
        )
    if path == "type":
        found = dict.fromkeys(name for value in found for name in _names_of_type(value))
    return tuple(found)


def values_in(path: str, given: Any) -> tuple[str, ...]:
    """Return the values of a filter in JSON: of a list or a single one, numbers and truth values
    as texts. Raises ``InvalidParamsError``.
    """
    listed = given if isinstance(given, list | tuple) else [given]
    texts = []
    for each in listed:
        if isinstance(each, str):
            texts.append(each)
        elif isinstance(each, bool | int | float):
            texts.append(msgspec.json.encode(each).decode())
        else:
            kind = "null" if each is None else "an object" if isinstance(each, dict) else "a list"
            raise InvalidParamsError(
                f"{path!r} is compared with {kind}; a value is a text, a number or a truth value, "
                "or a list of them"
            )
    return tuple(texts)


def _names_of_type(value: str) -> tuple[str, ...]:
    if "/" not in value:
        meant = _SHORT_TYPES.get(value.lower())
        hint = f"did you mean {meant!r}?" if meant else f"a type is one such as {A2A_CARD!r}"
        raise InvalidParamsError(f"{value[:80]!r} is no media type; {hint}")
    if _SPACED.fullmatch(value):
        value = value.replace(" ", "+")
    for names in (A2A_CARD_TYPES, REGISTRY_TYPES):
        if value.lower() in names:
            return tuple(names)
    return (value,)
