"""Protobuf messages as plain Python values, those of their ProtoJSON, and back.

For versions that are translated from their JSON; messages of 1.0 need no such step
(``wire.protobuf.structs``). Members have the JSON names of fields, and bytes in base64. Enums are
read as numbers, and written from numbers or names. Writing ignores members that a message lacks.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from parley.model.struct import Timestamp
from parley.wire.json import tolerance
from parley.wire.json.problems import InvalidValue, Problem
from parley.wire.protobuf.messages import Message
from parley.wire.protobuf.values import (
    read_struct,
    read_timestamp,
    read_value,
    write_struct,
    write_timestamp,
    write_value,
)

Members = dict[str, Any]

_KNOWN_READERS: Mapping[str, Callable[[Any], Any]] = {
    "google.protobuf.Struct": read_struct,
    "google.protobuf.Value": read_value,
    "google.protobuf.Timestamp": lambda message: str(read_timestamp(message)),
}
_KNOWN_WRITERS: Mapping[str, Callable[[Any, Any], None]] = {
    "google.protobuf.Struct": write_struct,
    "google.protobuf.Value": write_value,
    "google.protobuf.Timestamp": lambda message, text: write_timestamp(
        message, Timestamp.parse(text)
    ),
}


def members_of(message: Message, *, tolerant: bool = False) -> Members:
    """Return the members of a message. Raises ``InvalidValue``; ``tolerant`` reports instead."""
    members: Members = {}
    problems: list[Problem] = []
    for field, value in message.ListFields():
        try:
            members[field.json_name] = _read_field(field, value, tolerant)
        except InvalidValue as wrong:
            problems += wrong.under(field.json_name)
    if problems and not tolerant:
        raise InvalidValue(problems)
    tolerance.report(problems)
    return members


def _read_field(field: Any, value: Any, tolerant: bool) -> Any:
    if _is_map(field):
        item = field.message_type.fields_by_name["value"]
        return {key: _read(item, value[key], tolerant, key) for key in value}
    if field.is_repeated:
        return [_read(field, item, tolerant, index) for index, item in enumerate(value)]
    return _read(field, value, tolerant)


def _read(field: Any, value: Any, tolerant: bool, name: str | int | None = None) -> Any:
    if field.message_type is not None:
        read = _KNOWN_READERS.get(field.message_type.full_name)
        try:
            return members_of(value, tolerant=tolerant) if read is None else read(value)
        except InvalidValue as wrong:
            raise InvalidValue(wrong.problems if name is None else wrong.under(name)) from None
    return base64.b64encode(value).decode() if field.type == FieldDescriptor.TYPE_BYTES else value


def fill(message: Message, members: Mapping[str, Any], *, bytes_as_text: bool = False) -> None:
    """Fill a message with ``members``. ``bytes_as_text`` leaves bytes in base64.

    Raises ``InvalidValue`` for a number that no double holds, ``ValueError`` or ``TypeError`` for
    what does not fit its field.
    """
    for field, value in _given(message, members):
        name = field.name
        try:
            if _is_map(field):
                entries, item = getattr(message, name), field.message_type.fields_by_name["value"]
                for key, each in value.items():
                    if item.message_type is not None:
                        _write(entries[key], each, bytes_as_text)
                    else:
                        entries[key] = each
            elif field.message_type is None:
                scalar = _SCALARS.get(field.type, _unchanged)
                if scalar is _bytes and bytes_as_text:
                    scalar = _text
                if field.is_repeated:
                    getattr(message, name).extend([scalar(field, each) for each in value])
                else:
                    setattr(message, name, scalar(field, value))
            elif field.is_repeated:
                for each in value:
                    _write(getattr(message, name).add(), each, bytes_as_text)
            else:
                inner = getattr(message, name)
                inner.SetInParent()
                _write(inner, value, bytes_as_text)
        except InvalidValue as wrong:
            raise InvalidValue(wrong.under(field.json_name)) from None


def _given(message: Message, members: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    for field in message.DESCRIPTOR.fields:
        value = members.get(field.json_name)
        if value is not None:
            yield field, value


def _write(message: Message, value: Any, bytes_as_text: bool) -> None:
    write = _KNOWN_WRITERS.get(message.DESCRIPTOR.full_name)
    if write is not None:
        write(message, value)
    else:
        fill(message, value, bytes_as_text=bytes_as_text)


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.has_options and kind.GetOptions().map_entry)


def _unchanged(field: Any, value: Any) -> Any:
    return value


def _enum(field: Any, value: Any) -> int:
    return value if isinstance(value, int) else field.enum_type.values_by_name[value].number


def _bytes(field: Any, value: Any) -> bytes:
    return base64.b64decode(value)


def _text(field: Any, value: Any) -> bytes:
    return bytes(value, "ascii")


_SCALARS: Mapping[int, Callable[[Any, Any], Any]] = {
    FieldDescriptor.TYPE_ENUM: _enum,
    FieldDescriptor.TYPE_BYTES: _bytes,
}
