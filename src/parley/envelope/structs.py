"""Structs of the envelope protocol from parsed JSON.

Members that a struct does not have are ignored, and ``null`` leaves one out. Everything else has to
be of its exact type; every wrong member is named.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from parley.wire.json.problems import InvalidValue, Problem, expected, read_items, read_members

T = TypeVar("T")

Read = Callable[[Any], Any]


def read_struct(kind: type[T], value: Any) -> T:
    """Return the ``kind`` that a JSON value stands for. Raises ``InvalidValue``."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except (msgspec.ValidationError, RecursionError):
        return _reader(kind)(value)  # type: ignore[no-any-return, arg-type]


@cache
def _reader(kind: type) -> Read:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return _struct(info)


def _read_of(info: inspect.Type) -> Read:
    match info:
        case inspect.StructType(cls=cls):
            return lambda value: _reader(cls)(value)
        case inspect.UnionType(types=types):
            (inner,) = [each for each in types if not isinstance(each, inspect.NoneType)]
            return _read_of(inner)
        case inspect.StrType(min_length=min_length):
            return lambda value: _text_of(value, min_length or 0)
        case inspect.IntType(ge=lowest, le=highest):
            return lambda value: _integer(value, lowest or 0, highest or 0)
        case inspect.BoolType():
            return _boolean
        case inspect.AnyType():
            return lambda value: value
        case inspect.VarTupleType(item_type=item):
            read_item = _read_of(item)
            return lambda value: tuple(read_items(enumerate(_list(value)), read_item))
        case inspect.DictType(value_type=item):
            read_value = _read_of(item)
            return lambda value: read_members(object_of(value), read_value)
    raise TypeError(f"messages have no members like {info!r}")


def _struct(info: inspect.StructType) -> Read:
    fields = {each.encode_name: (each, _read_of(each.type)) for each in info.fields}

    def read(value: Any) -> Any:
        members = object_of(value)
        given: dict[str, Any] = {}
        problems: list[Problem] = []
        for name, (field, read_field) in fields.items():
            item = members.get(name)
            if item is None:
                if field.required:
                    problems.append((name, "required, but missing"))
                continue
            try:
                given[field.name] = read_field(item)
            except InvalidValue as wrong:
                problems += wrong.under(name)
        if problems:
            raise InvalidValue(problems)
        return info.cls(**given)

    return read


def object_of(value: Any) -> dict[str, Any]:
    """Return a value that is an object. Raises ``InvalidValue`` for others."""
    if type(value) is not dict:
        raise expected("an object", value)
    return value


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise expected("an array", value)
    return value


def _text_of(value: Any, min_length: int) -> str:
    if type(value) is not str:
        raise expected("a string", value)
    if len(value) < min_length:
        raise InvalidValue([("", "must not be empty")])
    return value


def _integer(value: Any, lowest: int, highest: int) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not lowest <= value <= highest:
        what = f"an integer from {lowest} to {highest}"
        raise InvalidValue([("", f"expected {what}, got {str(value)[:40]}")])
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise expected("true or false", value)
    return value
