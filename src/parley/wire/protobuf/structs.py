"""Values of the data model as protobuf messages, and back.

For each type of the data model a writer and a reader are made once from its struct, which has the
names of the specification's messages and fields. Readers collect what is wrong, in the same words
as those of JSON (``wire.lenient``).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from msgspec import UNSET, inspect

from parley.model.struct import A2AStruct, Timestamp, WrongField
from parley.wire.json import tolerance
from parley.wire.json.readers import MAX_PROBLEMS, Wrong, assembler, left_out
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
"""Makes a value of the data model out of what a field holds. Raises ``Wrong``."""

Write = Callable[[Any, Any], None]
"""Fills a message with a value. Raises ``Wrong``."""

_Put = tuple[str, str, Any, Write]
_AS_IT_IS = (inspect.StrType, inspect.IntType, inspect.BoolType, inspect.BytesType)


class Structs:
    """The data model in the messages of one schema, which have the names of its types."""

    def __init__(self, messages: Messages) -> None:
        self.messages = messages
        self._readers: dict[tuple[type, bool], Read] = {}
        self._writers: dict[type, Write] = {}

    def encode(self, value: A2AStruct) -> bytes:
        """Return a value as the bytes of its message.

        Raises ``Wrong`` for a number that no double holds.
        """
        kind = type(value)
        message = self.messages[kind.__name__]()
        self._writer(kind)(message, value)
        return message.SerializeToString()  # type: ignore[no-any-return]

    def read(self, message: Message, kind: type[A2AStruct], *, forgiving: bool = False) -> Any:
        """Return the value of type ``kind`` that a message holds. Raises ``Wrong``.

        ``forgiving`` leaves out the fields that are wrong (``wire.forgiveness``).
        """
        return self._reader(kind, forgiving)(message)

    # -- writing -------------------------------------------------------------------------------

    def _writer(self, kind: type) -> Write:
        made = self._writers.get(kind)
        if made is None:
            puts: list[_Put] = []
            # In place before it is made: types hold each other.
            self._writers[kind] = made = _fill(puts)
            info = inspect.type_info(kind)
            assert isinstance(info, inspect.StructType)
            puts += [(f.name, f.encode_name, _absent(f.type), self._put(f)) for f in info.fields]
        return made

    def _put(self, field: inspect.Field) -> Write:
        """Return what puts the value of a struct's field into a message."""
        name, info = field.name, _given(field.type)
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
                        for place, item in enumerate(value):
                            try:
                                fill_item(add(), item)
                            except Wrong as wrong:
                                raise Wrong(wrong.under(f"[{place}]")) from None

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
            case info if isinstance(info, _AS_IT_IS):
                return scalar
        raise TypeError(f"the data model has no fields like {info!r}")

    # -- reading -------------------------------------------------------------------------------

    def _reader(self, kind: type, forgiving: bool) -> Read:
        made = self._readers.get((kind, forgiving))
        if made is None:
            fields: dict[Any, _Field] = {}
            required: list[tuple[str, str, Callable[[], Any] | None]] = []
            info = inspect.type_info(kind)
            assert isinstance(info, inspect.StructType)
            wire = {each.name: each.encode_name for each in info.fields}
            if forgiving:
                made = _take_what_is_right(info, fields)
            else:
                made = _take(kind, fields, required, wire)
            self._readers[kind, forgiving] = made
            descriptor = self.messages[kind.__name__].DESCRIPTOR
            for each in info.fields:
                read = self._get(_given(each.type), forgiving)
                # A descriptor is one and the same object for as long as it is held here.
                key = descriptor.fields_by_name[each.name]
                fields[key] = _Field(each.name, each.encode_name, read)
                if each.required:
                    required.append((each.name, each.encode_name, left_out(each.type)))
        return made

    def _get(self, info: inspect.Type, forgiving: bool) -> Read | None:
        """Return what reads a field that is set; ``None`` where protobuf's value is ours."""
        match info:
            case inspect.StructType(cls=cls):
                return self._reader(cls, forgiving)
            case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)):
                read_item = self._reader(cls, forgiving)
                return _those_right(read_item) if forgiving else _tuple(read_item)
            case inspect.VarTupleType(item_type=inspect.StrType()):
                return tuple
            case inspect.DictType(value_type=inspect.AnyType()):
                return read_struct
            case inspect.DictType(value_type=inspect.StructType(cls=cls)):
                return _map(self._reader(cls, forgiving), forgiving)
            case inspect.DictType(value_type=inspect.StrType()):
                return dict
            case inspect.EnumType(cls=cls):
                return _enum(cls, forgiving)
            case inspect.CustomType(cls=cls) if cls is Timestamp:
                return read_timestamp
            case inspect.AnyType():
                return read_value
            case info if isinstance(info, _AS_IT_IS):
                return None
        raise TypeError(f"the data model has no fields like {info!r}")


class _Field(NamedTuple):
    name: str
    wire: str
    read: Read | None


def _given(info: inspect.Type) -> inspect.Type:
    """Return the type of a field where it is set."""
    if isinstance(info, inspect.UnionType):
        (info,) = [case for case in info.types if not isinstance(case, inspect.NoneType)]
    return info


def _absent(info: inspect.Type) -> Any:
    """Return what stands in a struct for a field that is not set."""
    return UNSET if isinstance(info, inspect.AnyType) else None


def _fill(puts: list[_Put]) -> Write:
    def fill(message: Message, value: Any) -> None:
        for name, known_as, absent, put in puts:
            item = getattr(value, name)
            if item is not absent:
                try:
                    put(message, item)
                except Wrong as wrong:
                    raise Wrong(wrong.under(known_as)) from None

    return fill


def _take(
    make: type,
    fields: dict[Any, _Field],
    required: list[tuple[str, str, Callable[[], Any] | None]],
    wire: dict[str, str],
) -> Read:
    def take(message: Message) -> Any:
        given: dict[str, Any] = {}
        problems: list[tuple[str, str]] = []
        for descriptor, item in message.ListFields():
            name, known_as, read = fields[descriptor]
            try:
                given[name] = item if read is None else read(item)
            except Wrong as wrong:
                given[name] = None
                problems += wrong.under(known_as)
        for name, known_as, make_empty in required:
            if name not in given:
                if make_empty is None:
                    problems.append((known_as, "required, but missing"))
                else:
                    given[name] = make_empty()
        if not problems:
            try:
                return make(**given)
            except WrongField as wrong:
                problems.append((wire[wrong.field], wrong.description))
            except ValueError as wrong:
                problems.append(("", str(wrong)))
        raise Wrong(problems)

    return take


def _take_what_is_right(info: inspect.StructType, fields: dict[Any, _Field]) -> Read:
    put_together = assembler(info)

    def take(message: Message) -> Any:
        given: dict[str, Any] = {}
        problems: list[tuple[str, str]] = []
        for descriptor, item in message.ListFields():
            name, known_as, read = fields[descriptor]
            try:
                given[name] = item if read is None else tolerance.below(known_as, read, item)
            except Wrong as wrong:
                problems += wrong.under(known_as)
        return put_together(given, problems)

    return take


def _those_right(read_item: Read) -> Read:
    def read(items: Any) -> tuple[Any, ...]:
        taken = []
        for place, item in enumerate(items):
            try:
                taken.append(tolerance.below(f"[{place}]", read_item, item))
            except Wrong as wrong:
                tolerance.note(wrong.under(f"[{place}]"))
        return tuple(taken)

    return read


def _tuple(read_item: Read) -> Read:
    def read(items: Any) -> tuple[Any, ...]:
        try:
            return tuple([read_item(item) for item in items])
        except Wrong:
            places = ((f"[{place}]", item) for place, item in enumerate(items))
            raise _wrong_in(places, read_item) from None

    return read


def _map(read_item: Read, forgiving: bool) -> Read:
    def forgive(items: Any) -> dict[str, Any]:
        taken = {}
        for key in items:
            try:
                taken[key] = tolerance.below(key[:40], read_item, items[key])
            except Wrong as wrong:
                tolerance.note(wrong.under(key[:40]))
        return taken

    if forgiving:
        return forgive

    def read(items: Any) -> dict[str, Any]:
        try:
            return {key: read_item(items[key]) for key in items}
        except Wrong:
            raise _wrong_in(((key[:40], items[key]) for key in items), read_item) from None

    return read


def _wrong_in(items: Any, read_item: Read) -> Wrong:
    """Return all that is wrong with some of several named items."""
    problems: list[tuple[str, str]] = []
    for name, item in items:
        try:
            read_item(item)
        except Wrong as wrong:
            problems += wrong.under(name)
            if len(problems) >= MAX_PROBLEMS:
                break
    return Wrong(problems)


def _enum(cls: type[Enum], forgiving: bool) -> Read:
    members = dict(enumerate(cls))  # the order of definition is that of the numbers
    allowed = ", ".join(m.value for m in cls if not m.value.endswith("_UNSPECIFIED"))

    def read(number: int) -> Enum:
        member = members.get(number)
        if member is None:
            wrong = Wrong([("", f"expected one of {allowed}; got the number {number}")])
            if not forgiving:
                raise wrong
            tolerance.note(wrong.problems)
            return members[0]
        return member

    return read
