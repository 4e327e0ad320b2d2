"""Every field of a value that does not fit a type. msgspec itself stops at the first."""

from __future__ import annotations

import enum
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from parley.engine.typed.schema import arms, class_of, fields_of, plain
from parley.model.errors import FieldViolation
from parley.model.struct import encode

T = TypeVar("T")

MAX_CHECKED_VALUES = 10_000
"""How many fields and items of a value are looked at: a caller could send millions."""

MAX_CHOICES = 20
"""How many choices of an enum an error lists."""

_EXPECTED: dict[Any, str] = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    datetime: "a date and time such as 2026-01-31T12:00:00Z",
    date: "a date such as 2026-01-31",
    time: "a time such as 12:30:00",
    timedelta: "a duration such as PT1H30M",
    UUID: "a UUID",
    Decimal: "a decimal number",
    bytes: "base64 text",
    bytearray: "base64 text",
    Any: "any value",
    object: "any value",
}
_PLACE = re.compile(r" - at `[^`]*`$")
_TYPE = re.compile(r"`(\w+)`")
_WORDS = {
    "str": "text",
    "int": "an integer",
    "float": "a number",
    "array": "a list",
    "object": "an object",
}

Convert = Callable[[Any, Any], Any]
"""Makes a value of a type out of JSON data; raises ``msgspec.ValidationError``."""


def violations_of(
    kind: Any, data: Any, convert: Convert, others: Callable[[Any, Any], Sequence[Violation] | None]
) -> list[Violation]:
    """Return the faults of ``data`` as a value of ``kind``, which does not fit.

    Looks at ``MAX_CHECKED_VALUES`` fields and items; all faults behind them are one violation.
    ``others`` returns the violations of a type that msgspec does not read, ``None`` for the rest.
    """
    found: list[Violation] = []
    for violation in _Walk(convert, others).of(kind, data, ()):
        found.append(violation)
        if len(found) == MAX_VIOLATIONS:
            break
    return found


class _Walk:
    def __init__(
        self, convert: Convert, others: Callable[[Any, Any], Sequence[Violation] | None]
    ) -> None:
        self._convert = convert
        self._others = others
        self._left = MAX_CHECKED_VALUES

    def of(self, kind: Any, data: Any, path: Path) -> Iterator[Violation]:
        """Yield the faults of ``data``; at least one violation unless it fits."""
        self._left -= 1
        try:
            self._convert(data, kind)
            return
        except msgspec.ValidationError as error:
            failure = error
        except TypeError:  # msgspec does not read this type by itself: what holds it is blamed
            return
        foreign = self._others(kind, data)
        if foreign is not None:
            yield from (Violation((*path, *each.path), each.description) for each in foreign)
            return
        is_within = False
        for violation in self._within(kind, data, path):
            is_within = True
            yield violation
        if not is_within:
            place = _PLACE.search(str(failure)) if self._left <= 0 else None
            words = self._description(kind, data, failure)
            yield Violation(path, words + (place[0] if place is not None else ""))

    def _within(self, kind: Any, data: Any, path: Path) -> Iterator[Violation]:
        """Yield the faults of the members or items of ``data``."""
        arm = self._arm(kind, data)
        owner = class_of(arm)
        arguments = typing.get_args(plain(arm))
        if isinstance(data, dict):
            if isinstance(owner, type) and fields_of(arm):
                yield from self._of_record(arm, data, path)
            elif _is_a(owner, Mapping) and len(arguments) == 2:
                for name, value in self._some(data.items()):
                    yield from self.of(arguments[1], value, (*path, name))
        elif isinstance(data, list):
            if _is_a(owner, tuple) and fields_of(arm):
                kinds = list(fields_of(arm).values())
                for index, (value, each) in enumerate(zip(data, kinds, strict=False)):
                    yield from self.of(each, value, (*path, index))
            elif _is_a(owner, tuple) and arguments and arguments[-1] is not ...:
                for index, (value, each) in enumerate(zip(data, arguments, strict=False)):
                    yield from self.of(each, value, (*path, index))
            elif _is_a(owner, (Sequence, Set)) and arguments:
                for index, value in self._some(enumerate(data)):
                    yield from self.of(arguments[0], value, (*path, index))

    def _of_record(self, kind: Any, data: dict[str, Any], path: Path) -> Iterator[Violation]:
        owner, hints = class_of(kind), fields_of(kind)
        info: Any = msgspec.inspect.type_info(kind)
        tag_field = getattr(info, "tag_field", None)
        names = [field.encode_name for field in info.fields]
        for field in self._some(info.fields):
            here = (*path, field.encode_name)
            if field.encode_name in data:
                yield from self.of(hints[field.name], data[field.encode_name], here)
            elif field.required:
                yield Violation(here, f"required: {expected(hints[field.name])}")
        if tag_field is not None and data.get(tag_field, info.tag) != info.tag:
            yield Violation((*path, tag_field), f"expected {_shown(info.tag)}")
        config = getattr(owner, "__struct_config__", None)
        if config is not None and config.forbid_unknown_fields:
            for name in data:
                if name not in names and name != tag_field:
                    known = ", ".join(names) or "none"
                    yield Violation((*path, name), f"unknown field; the fields are {known}")

    def _some(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items, as long as there is one left to look at."""
        for item in items:
            if self._left <= 0:
                return
            yield item

    def _arm(self, kind: Any, data: Any) -> Any:
        """Return the type of a union that ``data`` is meant to be, as far as that is clear."""
        kinds = arms(kind)
        if len(kinds) == 1:
            return kind if plain(kind) is kinds[0] else kinds[0]
        fitting = [each for each in kinds if _is_of_shape(each, data)]
        if len(fitting) > 1 and isinstance(data, dict):
            tagged = []
            for each in fitting:
                info: Any = msgspec.inspect.type_info(each)
                if (field := getattr(info, "tag_field", None)) and data.get(field) == info.tag:
                    tagged.append(each)
            fitting = tagged
        return fitting[0] if len(fitting) == 1 else None

    def _description(self, kind: Any, data: Any, failure: Exception) -> str:
        """Return the expectation for a value that has no smaller part to blame."""
        if failure.__cause__ is not None:  # a __post_init__ of the author says it
            return str(failure.__cause__)
        for arm in arms(kind):
            try:
                self._convert(data, arm)
            except msgspec.ValidationError:
                if not _is_of_shape(arm, data):
                    continue
            # The type is right, and something else is not: a constraint, a tag.
            words = _PLACE.sub("", str(failure))
            words = _TYPE.sub(lambda found: _WORDS.get(found[1], found[0]), words)
            return words[:1].lower() + words[1:]
        wanted, got = expected(kind), _named(data)
        is_text_of_a_kind = got == "text" and ("such as" in wanted or "one of" in wanted)
        return f"expected {wanted}" if is_text_of_a_kind else f"expected {wanted}, got {got}"


def expected(kind: Any) -> str:
    """Return in words which values a type has."""
    words: list[str] = []
    for arm in arms(kind):
        owner = class_of(arm)
        choices = choices_of(arm)
        if choices is not None:
            listed = ", ".join(map(_shown, choices[:MAX_CHOICES]))
            word = f"one of {listed}" if len(choices) > 1 else listed
        elif isinstance(arm, typing.TypeVar):
            word = "any value"
        elif owner in _EXPECTED:
            word = _EXPECTED[owner]
        elif _is_a(owner, tuple) or _is_a(owner, (Sequence, Set)):
            word = "a list"
        else:
            word = "an object"
        if word not in words:
            words.append(word)
    return " or ".join(words)


def choices_of(kind: Any) -> list[Any] | None:
    """Return the values of an enum or a ``Literal``."""
    kind = plain(kind)
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [member.value for member in kind]
    return None


def _is_of_shape(kind: Any, data: Any) -> bool:
    """Return whether a value of ``kind`` is an object or a list in JSON, as ``data`` is."""
    owner = class_of(kind)
    is_array = _is_a(owner, tuple) or _is_a(owner, (Sequence, Set))
    if isinstance(data, dict):
        return not is_array and bool(fields_of(kind) or _is_a(owner, Mapping))
    return isinstance(data, list) and is_array


def _is_a(owner: Any, kinds: Any) -> bool:
    return isinstance(owner, type) and issubclass(owner, kinds) and owner not in _EXPECTED


def _shown(value: Any) -> str:
    return encode(value).decode()


def _named(data: Any) -> str:
    """Return the JSON type of ``data`` in words."""
    if data is None:
        return "null"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, str):
        return "text"
    if isinstance(data, int | float):
        return "a number"
    return "a list" if isinstance(data, list) else "an object"


MAX_VIOLATIONS = 50
"""How many violations of one value are reported."""

WHOLE = "$"
"""The field of a violation that concerns the whole value."""

Path = tuple[str | int, ...]
"""The way to a field: member names and positions in lists."""


class Violation(NamedTuple):
    """A field that does not fit, and the expectation there."""

    path: Path
    description: str

    @property
    def field(self) -> str:
        """The path as text, such as ``stops[0].city``; ``$`` for the whole value."""
        text = ""
        for step in self.path:
            if isinstance(step, int):
                text += f"[{step}]"
            else:
                text += f".{step}" if text else step
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
        """The violations as the errors of the protocol have them."""
        return tuple(FieldViolation(each.field, each.description) for each in self.violations)


class UnsupportedType(TypeError):
    """A type that has no JSON form. The text says which, and what would be right."""
