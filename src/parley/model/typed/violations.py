"""The first wrong fields of a value, from errors of msgspec or pydantic; conflicts of schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import EllipsisType
from typing import Any, NamedTuple

import msgspec

from parley.model.errors import FieldViolation
from parley.model.struct import encode
from parley.model.typed.schema import REF

MAX_VIOLATIONS = 50
"""The maximum number of reported violations of one value."""

MAX_CHOICES = 20
"""The maximum number of choices of an enum in an error."""

_MAX_COMPARED_DEPTH = 16

WHOLE = "$"
"""The field of a violation that concerns the whole value."""

Path = tuple[str | int | EllipsisType, ...]
"""The path to a field: member names and list positions; ``...`` for any member of a mapping."""


class Violation(NamedTuple):
    """A field that does not fit, and the expected value."""

    path: Path
    description: str

    @property
    def field(self) -> str:
        """The path as text, such as ``stops[0].city``; ``$`` for the whole value."""
        text = ""
        for step in self.path:
            if isinstance(step, str):
                text += f".{step}" if text else step
            else:
                text += "[...]" if step is ... else f"[{step}]"
        return text or WHOLE

    def __str__(self) -> str:
        return f"{self.field}: {self.description}"


class Mismatch(ValueError):
    """A value that does not fit its type."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)[:MAX_VIOLATIONS]
        super().__init__("; ".join(map(str, self.violations)))

    @property
    def fields(self) -> tuple[FieldViolation, ...]:
        """The violations in the form of protocol errors."""
        return tuple(FieldViolation(each.field, each.description) for each in self.violations)


class UnsupportedType(TypeError):
    """A type without a JSON form. The message names it, and supported types."""


_PLACE = re.compile(r" - at `(key` in `)?\$([^`]*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")
_FIELD = re.compile(r"Object (?:missing required|contains (unknown)) field `(.*)`")
_TYPES = re.compile(r"Expected `[^`]*`, got `(\w+)`")
_TYPE = re.compile(r"`(\w+)`")

_WORDS = {
    "str": "text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
"""Words for the types in msgspec's errors."""

_EXPECTED = {
    "string": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
    "date-time": "a date and time such as 2026-01-31T12:00:00Z",
    "date": "a date such as 2026-01-31",
    "time": "a time such as 12:30:00",
    "duration": "a duration such as PT1H30M",
    "uuid": "a UUID",
    "decimal": "a decimal number",
    "base64": "base64 text",
}
"""Words for the types, formats and encodings in schemas."""

Schema = Mapping[str, Any]


def violations_of(error: msgspec.ValidationError, data: Any, schema: Schema) -> list[Violation]:
    """Return the first wrong field of ``data`` that msgspec found, described by its schema.

    If an object lacks several fields, all of them are listed; for a pydantic model all wrong fields
    are.
    """
    text, options = str(error), _options(schema, schema)
    place = _PLACE.search(text)
    path = () if place is None else _path(place[2])
    text = _PLACE.sub("", text)
    if isinstance(error.__cause__, Mismatch):
        within = error.__cause__.violations
        return [Violation((*path, *each.path), each.description) for each in within]
    if error.__cause__ is not None:  # raised by an author's __post_init__
        return [Violation(path, text)]
    if place is not None and place[1]:
        return [Violation(path, f"a key: {_description(text, [])}")]
    for step in path:
        options = _below(options, step, schema)
        data = _member(data, step)
    if (field := _FIELD.fullmatch(text)) is None:
        return [Violation(path, _description(text, options))]
    name = field[2]
    if field[1]:
        known = [each for option in options for each in option.get("properties", ())]
        words = f"unknown field; the fields are {', '.join(known) or 'none'}"
        return [Violation((*path, name), words)]
    lists = [each["required"] for each in options if name in each.get("required", ())]
    missing = [name]
    if len(lists) == 1 and isinstance(data, dict):
        missing = [each for each in lists[0] if each not in data]
    return [
        Violation((*path, each), f"required: {_expected(_below(options, each, schema))}")
        for each in missing
    ]


def expected(schema: Schema) -> str:
    """Return a description of a schema's values."""
    return _expected(_options(schema, schema))


def _path(text: str) -> Path:
    return tuple(
        name or (int(position) if position else ...) for name, position in _STEP.findall(text)
    )


def _options(schema: Any, whole: Schema) -> list[Schema]:
    """Return the alternative schemas of a value."""
    if not isinstance(schema, Mapping):
        return []
    if "$ref" in schema:
        return _options(whole["$defs"][schema["$ref"].removeprefix(REF)], whole)
    if "anyOf" in schema:
        return [each for option in schema["anyOf"] for each in _options(option, whole)]
    return [schema]


def _below(
    options: Iterable[Schema], step: str | int | EllipsisType, whole: Schema
) -> list[Schema]:
    """Return the schemas of a member or an item."""
    found: list[Schema] = []
    for option in options:
        if isinstance(step, int):
            items = option.get("prefixItems", ())
            found += _options(items[step] if step < len(items) else option.get("items"), whole)
        else:
            members = option.get("properties", {})
            found += _options(members.get(step, option.get("additionalProperties")), whole)
    return found


def _member(data: Any, step: Any) -> Any:
    """Return a member or an item; ``None`` if the step is ambiguous."""
    if isinstance(data, dict):
        return data.get(step)
    return data[step] if isinstance(data, list) and isinstance(step, int) else None


def _expected(options: Iterable[Schema]) -> str:
    words = []
    for option in options:
        if (choices := option.get("enum", [option.get("const")])) != [None]:
            listed = ", ".join(encode(each).decode() for each in choices[:MAX_CHOICES])
            words.append(f"one of {listed}" if len(choices) > 1 else listed)
        else:
            kinds = (option.get(key) for key in ("format", "contentEncoding", "type"))
            words.append(
                next((_EXPECTED[kind] for kind in kinds if kind in _EXPECTED), "any value")
            )
    return " or ".join(dict.fromkeys(words))


def _description(text: str, options: list[Schema]) -> str:
    """Return msgspec's message, with the choices and formats of the schema."""
    if options and text.startswith("Invalid "):
        return f"expected {_expected(options)}"
    if options and (types := _TYPES.fullmatch(text)) is not None:
        got = "a number" if types[1] == "int" else _WORDS.get(types[1], types[1])
        return f"expected {_expected(options)}, got {got}"
    text = _TYPE.sub(lambda found: _WORDS.get(found[1], found[1]), text)
    return text[:1].lower() + text[1:]


def conflicts(needed: Schema, given: Schema) -> list[Violation]:
    """Return the members that a type needs and that values of a ``given`` schema do not have.

    Members of another basic type count too. Unions and open objects are not compared.
    """
    return [*_conflicts(needed, given, needed, given, (), 0)]


def _conflicts(
    needed: Any, given: Any, whole: Schema, other: Schema, path: Path, depth: int
) -> Iterator[Violation]:
    needed, given = _resolved(needed, whole), _resolved(given, other)
    wanted, offered = needed.get("type"), given.get("type")
    if depth > _MAX_COMPARED_DEPTH or not (isinstance(wanted, str) and isinstance(offered, str)):
        return
    if wanted != offered and {wanted, offered} != {"integer", "number"}:
        yield Violation(path, f"expected {_EXPECTED.get(wanted, wanted)}, the card says {offered}")
        return
    members = given.get("properties")
    if wanted == "array":
        below: list[tuple[Any, Any, Path]] = [
            (needed.get("items"), given.get("items"), (*path, ...))
        ]
    elif wanted == "object" and isinstance(members, Mapping):
        own = needed.get("properties") or {}
        below = [(own[name], members[name], (*path, name)) for name in own if name in members]
        if not given.get("additionalProperties"):
            for name in needed.get("required") or ():
                if name not in members:
                    yield Violation((*path, name), "missing from the schema on the card")
    else:
        return
    for inner, outer, where in below:
        yield from _conflicts(inner, outer, whole, other, where, depth + 1)


def _resolved(schema: Any, whole: Schema) -> Mapping[str, Any]:
    for _ in range(_MAX_COMPARED_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        definitions = whole.get("$defs")
        known = definitions if isinstance(definitions, Mapping) else {}
        schema = known.get(reference.removeprefix(REF))
    return {}
