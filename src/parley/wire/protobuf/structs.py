"""Values of the data model as protobuf messages of 1.0, and back.

Each type of the data model has a writer and a reader, made once from its struct: both sides have
the specification's names. ``wire.json.problems`` describes problems. Versions with other messages
go through plain values (``wire.protobuf.members``).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from msgspec import UNSET, inspect

from parley.model.struct import A2AStruct, Timestamp
from parley.wire.json import tolerance
from parley.wire.json.constructors import strict_constructor, tolerant_constructor
from parley.wire.json.problems import InvalidValue, Problem, read_items, read_members
from parley.wire.protobuf.messages import Message, Messages
from parley.wire.protobuf.values import (
    read_struct,
    read_timestamp,
    read_value,
    write_struct,
    write_timestamp,
    write_value,
)

Read = Callable[[Any], Any]
"""Makes a value of the data model out of what a field holds. Raises ``InvalidValue``."""

Write = Callable[[Any, Any], None]
"""Fills a message with a value. Raises ``InvalidValue``."""

_FieldWriter = tuple[str, str, Any, Write]
_SCALARS = (inspect.StrType, inspect.IntType, inspect.BoolType, inspect.BytesType)


class Structs:
    """The data model in the messages of one schema, which have the names of its types."""

    def __init__(self, messages: Messages) -> None:
        self.messages = messages
        self._readers: dict[tuple[type, bool], Read] = {}
        self._writers: dict[type, Write] = {}

    def encode(self, value: A2AStruct) -> bytes:
        """Return a value as the bytes of its message.

        Raises ``InvalidValue`` for a number that no double holds.
        """
        kind = type(value)
        message = self.messages[kind.__name__]()
        self._writer(kind)(message, value)
        return message.SerializeToString()  # type: ignore[no-any-return]

    def read(self, message: Message, kind: type[A2AStruct], *, tolerant: bool = False) -> Any:
        """Return the value of type ``kind`` that a message holds. Raises ``InvalidValue``.

        ``tolerant`` leaves out the fields that are wrong (``wire.json.tolerance``).
        """
        return self._reader(kind, tolerant)(message)

    # -- writing -------------------------------------------------------------------------------

    def _writer(self, kind: type) -> Write:
        made = self._writers.get(kind)
        if made is None:
            writers: list[_FieldWriter] = []
            # Registered before it is complete: types refer to each other.
            self._writers[kind] = made = _fill(writers)
            info = inspect.type_info(kind)
            assert isinstance(info, inspect.StructType)
            writers += [
                (_kept(f), f.encode_name, _absent(f), self._field_writer(f)) for f in info.fields
            ]
        return made

    def _field_writer(self, field: inspect.Field) -> Write:
        """Return what writes the value of a struct's field into a message."""
        name, info = field.name, _of_set_field(field.type)
        has_presence = info is not field.type

        def scalar(message: Message, value: Any) -> None:
            if value or has_presence:
                setattr(message, name, value)

        match info:
            case inspect.StructType(cls=cls):
                fill = self._writer(cls)

                def struct(message: Message, value: Any) -> None:
                    inner = getattr(message, name)
                    inner.SetInParent()
                    fill(inner, value)

                return struct
            case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)):
                fill_item = self._writer(cls)

                def structs(message: Message, value: Any) -> None:
                    if value:
                        add = getattr(message, name).add
                        for index, item in enumerate(value):
                            try:
                                fill_item(add(), item)
                            except InvalidValue as wrong:
                                raise InvalidValue(wrong.under(index)) from None

                return structs
            case inspect.VarTupleType(item_type=inspect.StrType()):

                def strings(message: Message, value: Any) -> None:
                    if value:
                        getattr(message, name).extend(value)

                return strings
            case inspect.DictType(value_type=inspect.AnyType()):
                return lambda message, value: write_struct(getattr(message, name), value)
            case inspect.DictType(value_type=inspect.StructType(cls=cls)):
                fill_value = self._writer(cls)

                def struct_map(message: Message, value: Any) -> None:
                    entries = getattr(message, name)
                    for key, item in value.items():
                        fill_value(entries[key], item)

                return struct_map
            case inspect.DictType(value_type=inspect.StrType()):
                return lambda message, value: getattr(message, name).update(value)
            case inspect.EnumType(cls=cls):
                numbers = {member: number for number, member in enumerate(cls)}
                return lambda message, value: setattr(message, name, numbers[value])
            case inspect.CustomType(cls=cls) if cls is Timestamp:
                return lambda message, value: write_timestamp(getattr(message, name), value)
            case inspect.AnyType():
                return lambda message, value: write_value(getattr(message, name), value)
            case info if isinstance(info, _SCALARS):
                return scalar
        raise TypeError(f"the data model has no fields like {info!r}")

    # -- reading -------------------------------------------------------------------------------

    def _reader(self, kind: type, tolerant: bool) -> Read:
        made = self._readers.get((kind, tolerant))
        if made is None:
            fields: dict[Any, _Field] = {}
            info = inspect.type_info(kind)
            assert isinstance(info, inspect.StructType)
            made = (_read_tolerantly if tolerant else _read_strictly)(info, fields)
            self._readers[kind, tolerant] = made
            descriptor = self.messages[kind.__name__].DESCRIPTOR
            for each in info.fields:
                read = self._field_reader(_of_set_field(each.type), tolerant)
                # A descriptor is one and the same object for as long as it is held here.
                key = descriptor.fields_by_name[each.name]
                fields[key] = _Field(each.name, each.encode_name, read)
        return made

    def _field_reader(self, info: inspect.Type, tolerant: bool) -> Read | None:
        """Return what reads a field that is set; ``None`` where protobuf's value is ours."""
        match info:
            case inspect.StructType(cls=cls):
                return self._reader(cls, tolerant)
            case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)):
                read_item = self._reader(cls, tolerant)
                return (tolerance.tuple_reader if tolerant else _tuple)(read_item)
            case inspect.VarTupleType(item_type=inspect.StrType()):
                return tuple
            case inspect.DictType(value_type=inspect.AnyType()):
                return read_struct
            case inspect.DictType(value_type=inspect.StructType(cls=cls)):
                return (tolerance.map_reader if tolerant else _map)(self._reader(cls, tolerant))
            case inspect.DictType(value_type=inspect.StrType()):
                return dict
            case inspect.EnumType(cls=cls):
                return _enum(cls, tolerant)
            case inspect.CustomType(cls=cls) if cls is Timestamp:
                return read_timestamp
            case inspect.AnyType():
                return read_value
            case info if isinstance(info, _SCALARS):
                return None
        raise TypeError(f"the data model has no fields like {info!r}")


class _Field(NamedTuple):
    name: str
    wire: str
    read: Read | None


def _of_set_field(info: inspect.Type) -> inspect.Type:
    """Return the type of a field where it is set."""
    if isinstance(info, inspect.UnionType):
        (info,) = [case for case in info.types if not isinstance(case, inspect.NoneType)]
    return info


def _kept(field: inspect.Field) -> str:
    """Return the attribute with the value of a field, which tells null from nothing."""
    return "kept_data" if isinstance(field.type, inspect.AnyType) else field.name


def _absent(field: inspect.Field) -> Any:
    """Return what stands in a struct for a field that is not set, and is not written.

    An empty text, tuple or false that is the default is none of a message's fields either.
    """
    if isinstance(field.type, inspect.AnyType):
        return UNSET
    return field.default if field.default in ("", (), False) else None


def _fill(writers: list[_FieldWriter]) -> Write:
    def fill(message: Message, value: Any) -> None:
        for name, wire, absent, write in writers:
            item = getattr(value, name)
            if item is not absent:
                try:
                    write(message, item)
                except InvalidValue as wrong:
                    raise InvalidValue(wrong.under(wire)) from None

    return fill


def _read_strictly(info: inspect.StructType, fields: dict[Any, _Field]) -> Read:
    construct = strict_constructor(info)

    def read_message(message: Message) -> Any:
        given: dict[str, Any] = {}
        problems: list[Problem] = []
        for descriptor, item in message.ListFields():
            name, wire, read = fields[descriptor]
            try:
                given[name] = item if read is None else read(item)
            except InvalidValue as wrong:
                given[name] = None
                problems += wrong.under(wire)
        return construct(given, problems)

    return read_message


def _read_tolerantly(info: inspect.StructType, fields: dict[Any, _Field]) -> Read:
    construct = tolerant_constructor(info)

    def read_message(message: Message) -> Any:
        given: dict[str, Any] = {}
        problems: list[Problem] = []
        for descriptor, item in message.ListFields():
            name, wire, read = fields[descriptor]
            try:
                given[name] = item if read is None else tolerance.read_below(wire, read, item)
            except InvalidValue as wrong:
                problems += wrong.under(wire)
        return construct(given, problems)

    return read_message


def _tuple(read_item: Read) -> Read:
    def read(items: Any) -> tuple[Any, ...]:
        try:
            return tuple([read_item(item) for item in items])
        except InvalidValue:  # read again, for all problems
            return tuple(read_items(enumerate(items), read_item))

    return read


def _map(read_item: Read) -> Read:
    return lambda items: read_members(items, read_item)


def _enum(cls: type[Enum], tolerant: bool) -> Read:
    members = dict(enumerate(cls))  # the order of definition is that of the numbers
    allowed = ", ".join(m.value for m in cls if not m.value.endswith("_UNSPECIFIED"))

    def read(number: int) -> Enum:
        member = members.get(number)
        if member is None:
            wrong = InvalidValue([("", f"expected one of {allowed}; got the number {number}")])
            if not tolerant:
                raise wrong
            tolerance.report(wrong.problems)
            return members[0]
        return member

    return read
