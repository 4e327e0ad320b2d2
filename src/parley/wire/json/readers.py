"""Readers of parsed JSON: one for each type of the data model, made once from its struct.

A reader takes what a JSON parser returns, in any form that ProtoJSON allows, and returns the value
or raises ``InvalidValue``. A strict reader finds every problem. A tolerant one loses a wrong field,
reports it (``tolerance``) and keeps the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Any, NamedTuple

from msgspec import inspect

from parley.model.struct import Timestamp
from parley.wire.json import tolerance
from parley.wire.json.constructors import strict_constructor, tolerant_constructor
from parley.wire.json.problems import (
    InvalidValue,
    Problem,
    expected,
    kind_name,
    read_items,
    read_members,
)

Read = Callable[[Any], Any]

_readers: dict[tuple[Any, bool], Read] = {}


def reader(kind: Any, *, tolerant: bool = False) -> Read:
    """Return the strict or the ``tolerant`` reader of a type of the data model."""
    made = _readers.get((kind, tolerant))
    if made is None:
        made = _readers[kind, tolerant] = _reader(inspect.type_info(kind), tolerant)
    return made


def _reader(info: inspect.Type, tolerant: bool) -> Read:
    match info:
        case inspect.StructType():
            return _struct(info, tolerant)
        case inspect.UnionType(types=types):
            cases = [case for case in types if not isinstance(case, inspect.NoneType)]
            if len(cases) == 1:  # the field is optional; its struct drops nulls
                return _reader(cases[0], tolerant)
        case inspect.VarTupleType(item_type=item, min_length=min_length):
            return _tuple(_reader(item, tolerant), min_length or 0, tolerant)
        case inspect.DictType(value_type=inspect.AnyType()):
            return _object
        case inspect.DictType(value_type=item):
            return _map(_reader(item, tolerant), tolerant)
        case inspect.EnumType(cls=cls):
            return _tolerant(_enum(cls), tolerance.enum_guesser(cls), tolerant)
        case inspect.StrType(min_length=min_length):
            strict = _non_empty_string if min_length else _string
            return _tolerant(strict, tolerance.guess_text, tolerant)
        case inspect.IntType(ge=lowest, le=highest):
            return _int(lowest or 0, highest or 0)
        case inspect.FloatType(ge=lowest, le=highest):
            return _float(lowest, highest)
        case inspect.BoolType():
            return _tolerant(_bool, tolerance.guess_bool, tolerant)
        case inspect.BytesType():
            return _tolerant(_bytes, tolerance.guess_bytes, tolerant)
        case inspect.CustomType(cls=cls) if cls is Timestamp:
            return _tolerant(_timestamp, tolerance.guess_timestamp, tolerant)
        case inspect.AnyType():
            return lambda value: value
    raise TypeError(f"the data model has no fields like {info!r}")


def _tolerant(strict: Read, guess: Read, tolerant: bool) -> Read:
    """Return ``strict``; if ``tolerant``, followed by ``guess`` where that refuses a value.

    ``guess`` returns ``None`` for a value that has no likely meaning.
    """
    if not tolerant:
        return strict

    def read(value: Any) -> Any:
        try:
            return strict(value)
        except InvalidValue as wrong:
            guessed = guess(value)
            if guessed is None:
                raise
            if isinstance(guessed, Enum) and guessed.name == "UNSPECIFIED":  # its meaning is lost
                tolerance.report(wrong.problems)
            return guessed

    return read


class _Field(NamedTuple):
    name: str
    wire: str
    read: Read
    takes_null: bool


def _struct(info: inspect.StructType, tolerant: bool) -> Read:
    fields: dict[str, _Field] = {}
    for each in info.fields:
        takes_null = isinstance(each.type, inspect.AnyType)  # google.protobuf.Value has a null
        field = _Field(each.name, each.encode_name, _reader(each.type, tolerant), takes_null)
        fields[field.wire] = fields[field.name] = field
    construct = strict_constructor(info)

    def read(value: Any) -> Any:
        given: dict[str, Any] = {}
        problems: list[Problem] = []
        for key, item in _object(value).items():
            field = fields.get(key)
            if field is None:
                continue
            name, wire, read_item, takes_null = field
            if item is None and not takes_null:
                continue
            if name in given:
                problems.append((wire, f"given twice, also as {name}"))
                continue
            try:
                given[name] = read_item(item)
            except InvalidValue as wrong:
                given[name] = None
                problems += wrong.under(wire)
        return construct(given, problems, value)

    construct_tolerantly = tolerant_constructor(info)

    def read_tolerantly(value: Any) -> Any:
        given: dict[str, Any] = {}
        problems: list[Problem] = []
        for key, item in _object(value).items():
            field = fields.get(key)
            if field is None or field.name in given or (item is None and not field.takes_null):
                continue
            try:
                given[field.name] = tolerance.read_below(field.wire, field.read, item)
            except InvalidValue as wrong:
                problems += wrong.under(field.wire)
        return construct_tolerantly(given, problems)

    return read_tolerantly if tolerant else read


def _tuple(read_item: Read, min_length: int, tolerant: bool) -> Read:
    read_right = tolerance.tuple_reader(read_item)

    def read_tolerantly(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            if not isinstance(value, str | dict):
                raise expected("an array", value)
            tolerance.report(expected("an array", value).problems)
            value = [value]
        return read_right(value)

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise expected("an array", value)
        if len(value) < min_length:
            raise InvalidValue([("", "must not be empty")])
        return tuple(read_items(enumerate(value), read_item))

    return read_tolerantly if tolerant else read


def _map(read_item: Read, tolerant: bool) -> Read:
    read_right = tolerance.map_reader(read_item)

    if tolerant:
        return lambda value: read_right(_object(value))
    return lambda value: read_members(_object(value), read_item)


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise expected("an object", value)
    return value


def _enum(cls: type[Enum]) -> Read:
    members = {member.value: member for member in cls}
    numbers = dict(enumerate(cls))  # defined in the order of the proto's numbers
    allowed = ", ".join([name for name in members if not name.endswith("_UNSPECIFIED")])

    def read(value: Any) -> Enum:
        member = None
        if isinstance(value, str):
            member = members.get(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            member = numbers.get(int(value)) if value == int(value) else None
        if member is None:
            got = f"{value[:40]!r}" if isinstance(value, str) else kind_name(value)
            raise InvalidValue([("", f"expected one of {allowed}; got {got}")])
        return member

    return read


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise expected("a string", value)
    return value


def _non_empty_string(value: Any) -> str:
    text = _string(value)
    if not text:
        raise InvalidValue([("", "must not be empty")])
    return text


_NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?")


def _int(lowest: int, highest: int) -> Read:
    def read(value: Any) -> int:
        number = value
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            number = float(value)  # exact, as int32 fits into it
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if type(number) is not int or not lowest <= number <= highest:
            what = f"an integer from {lowest} to {highest}"
            raise InvalidValue([("", f"expected {what}, got {str(value)[:40]}")])
        return number

    return read


def _float(lowest: float | None, highest: float | None) -> Read:
    low = -inf if lowest is None else lowest
    high = inf if highest is None else highest

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise expected("a number", value)
        if not low <= value <= high:
            raise InvalidValue([("", f"expected a number from {low:g} to {high:g}, got {value}")])
        return value

    return read


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise expected("true or false", value)
    return value


def _bytes(value: Any) -> bytes:
    try:
        return tolerance.decode_base64(_string(value))
    except ValueError:
        raise InvalidValue([("", "expected base64, but it is malformed")]) from None


def _timestamp(value: Any) -> Timestamp:
    try:
        return Timestamp.parse(_string(value))
    except ValueError as error:
        raise InvalidValue([("", str(error))]) from None
