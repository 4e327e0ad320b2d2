"""JSON values and timestamps as protobuf's own types (``Struct``, ``Value``, ``Timestamp``).

A ``Value`` holds numbers as doubles. Whole numbers up to 2^53 are read as integers; larger ones
lose digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from parley.model.struct import Timestamp, to_wire
from parley.wire.json.problems import InvalidValue, read_items, read_members
from parley.wire.protobuf.messages import Message

EXACT = 2**53
"""Integers up to here are exact in a double."""


def write_struct(message: Message, members: Mapping[str, Any]) -> None:
    """Fill a ``Struct``. Raises ``InvalidValue`` for a number that no double holds."""
    message.SetInParent()  # an empty object is present, too
    fields = message.fields
    for key, item in members.items():
        try:
            write_value(fields[key if type(key) is str else _key(key)], item)
        except InvalidValue as wrong:
            raise InvalidValue(wrong.under(str(key))) from None


def write_value(message: Message, value: Any) -> None:
    """Fill a ``Value`` with the JSON form of ``value``.

    Raises ``InvalidValue`` for a number that no double holds, ``TypeError`` for what has no JSON.
    """
    if isinstance(value, str):
        message.string_value = value
    elif value is None:
        message.null_value = 0
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, float | int):
        try:
            number = float(value)
        except OverflowError:
            raise InvalidValue(
                [("", "the number is too large for a double; send it as text")]
            ) from None
        if math.isfinite(number):
            message.number_value = number
        else:
            message.null_value = 0  # as in the JSON that we write
    elif isinstance(value, Mapping):
        write_struct(message.struct_value, value)
    elif isinstance(value, list | tuple):
        message.list_value.SetInParent()
        add = message.list_value.values.add
        for index, item in enumerate(value):
            try:
                write_value(add(), item)
            except InvalidValue as wrong:
                raise InvalidValue(wrong.under(index)) from None
    else:
        write_value(message, _as_json(value))


def _as_json(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=to_wire)


def _key(key: Any) -> str:
    (text,) = _as_json({key: None})
    return str(text)


def read_struct(message: Message) -> dict[str, Any]:
    """Return the object that a ``Struct`` holds. Raises ``InvalidValue``."""
    return read_members(message.fields, read_value)


def read_value(message: Message) -> Any:
    """Return the JSON value in a ``Value``; an empty one is null. Raises ``InvalidValue``."""
    kind = message.WhichOneof("kind")
    if kind == "string_value":
        return message.string_value
    if kind == "number_value":
        number = message.number_value
        if not math.isfinite(number):
            raise InvalidValue([("", f"JSON has no number {number}; send it as text")])
        return int(number) if number.is_integer() and -EXACT <= number <= EXACT else number
    if kind == "struct_value":
        return read_struct(message.struct_value)
    if kind == "list_value":
        return read_items(enumerate(message.list_value.values), read_value)
    return message.bool_value if kind == "bool_value" else None


def write_timestamp(message: Message, time: Timestamp) -> None:
    """Fill a ``Timestamp``."""
    message.SetInParent()  # 1970 is present, too
    seconds, milliseconds = divmod(time.milliseconds, 1000)
    message.seconds = seconds
    message.nanos = milliseconds * 1_000_000


def read_timestamp(message: Message) -> Timestamp:
    """Return what a ``Timestamp`` holds, in whole milliseconds. Raises ``InvalidValue``."""
    seconds, nanos = message.seconds, message.nanos
    if 0 <= nanos < 1_000_000_000:
        try:
            return Timestamp.from_milliseconds(seconds * 1000 + nanos // 1_000_000)
        except OverflowError:
            pass
    raise InvalidValue([("", f"{seconds} s and {nanos} ns is no moment from year 1 to year 9999")])
