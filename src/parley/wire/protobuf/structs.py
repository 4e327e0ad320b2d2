"""Values of the data model as protobuf messages of 1.0, and back.

Each type of the data model has a writer and a reader, made once from its struct: both sides use the
specification's names, except for the ``VersionForms``. ``wire.json.problems`` describes problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, inspect

from parley.model.struct import A2AStruct, Timestamp, to_wire
from parley.wire.json import problems as tolerance
from parley.wire.json.problems import InvalidValue, Problem, read_items, read_members
from parley.wire.json.protojson import (
    LATEST_FORMS,
    VersionForms,
    strict_constructor,
    tolerant_constructor,
)
from parley.wire.protobuf.messages import Message, Messages

EXACT = 2**53
"""Integers up to this are exact in a double."""


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

    Raises ``InvalidValue`` for a number that does not fit into a double, ``TypeError`` for a value
    that is not JSON.
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
    """Return the time in a ``Timestamp``, in whole milliseconds. Raises ``InvalidValue``."""
    seconds, nanos = message.seconds, message.nanos
    if 0 <= nanos < 1_000_000_000:
        try:
            return Timestamp.from_milliseconds(seconds * 1000 + nanos // 1_000_000)
        except OverflowError:
            pass
    raise InvalidValue([("", f"{seconds} s and {nanos} ns is no moment from year 1 to year 9999")])


Read = Callable[[Any], Any]
"""Makes a value of the data model from the value of a field. Raises ``InvalidValue``."""

Write = Callable[[Any, Any], None]
"""Fills a message with a value. Raises ``InvalidValue``."""

_FieldWriter = tuple[str, str, Any, Write]
_SCALARS = (inspect.StrType, inspect.IntType, inspect.BoolType, inspect.BytesType)


class Structs:
    """The data model in the messages of one package, which have the names of its types.

    ``forms`` are the forms of its version. Fields that a message does not have are not written.
    """

    def __init__(self, messages: Messages, forms: VersionForms = LATEST_FORMS) -> None:
        self._messages = messages
        self._forms = forms
        self._readers: dict[tuple[type, str, bool], Read] = {}
        self._writers: dict[tuple[type, str], Write] = {}

    def encode(self, value: A2AStruct, name: str) -> bytes:
        """Return a value as the bytes of the message ``name``.

        Raises ``InvalidValue`` for a number that no double holds.
        """
        message = self._messages[name]()
        self._writer(type(value), message.DESCRIPTOR)(message, value)
        return message.SerializeToString()  # type: ignore[no-any-return]

    def read(self, message: Message, kind: type[A2AStruct], *, tolerant: bool = False) -> Any:
        """Return the value of type ``kind`` in a message. Raises ``InvalidValue``.

        ``tolerant`` leaves out wrong fields (``wire.json.problems``).
        """
        return self._reader(kind, message.DESCRIPTOR, tolerant)(message)

    # -- writing -------------------------------------------------------------------------------

    def _writer(self, kind: type, descriptor: Any) -> Write:
        made = self._writers.get((kind, descriptor.full_name))
        if made is None:
            form = self._forms.types.get(kind)
            if form is not None:
                fill = self._writer(form, descriptor)
                made = lambda message, value: fill(message, form.of(value))  # noqa: E731
                self._writers[kind, descriptor.full_name] = made
                return made
            writers: list[_FieldWriter] = []
            # Registered before it is complete: types refer to each other.
            self._writers[kind, descriptor.full_name] = made = _fill(writers)
            info = inspect.type_info(kind)
            assert isinstance(info, inspect.StructType)
            writers += [
                (_kept(each), wire, _absent(each), self._field_writer(each.type, target))
                for each, name, wire in self._forms.fields(info)
                if (target := descriptor.fields_by_name.get(name)) is not None
            ]
        return made

    def _field_writer(self, given: inspect.Type, target: Any) -> Write:
        """Return a function that writes the value of a struct's field into the field ``target``."""
        name, info = target.name, _of_set_field(given)
        has_presence = info is not given

        def scalar(message: Message, value: Any) -> None:
            if value or has_presence:
                setattr(message, name, value)

        match info:
            case inspect.StructType(cls=cls):
                fill = self._writer(cls, target.message_type)

                def struct(message: Message, value: Any) -> None:
                    inner = getattr(message, name)
                    inner.SetInParent()
                    fill(inner, value)

                return struct
            case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)):
                fill_item = self._writer(cls, target.message_type)

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
                fill_value = self._writer(cls, _in_map(target))

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

    def _reader(self, kind: type, descriptor: Any, tolerant: bool) -> Read:
        key = (kind, descriptor.full_name, tolerant)
        made = self._readers.get(key)
        if made is None:
            form = self._forms.types.get(kind)
            if form is not None:
                read_form = self._reader(form, descriptor, tolerant)
                made = self._readers[key] = lambda message: read_form(message).to_model()
                return made
            fields: dict[Any, _Field] = {}
            info = inspect.type_info(kind)
            assert isinstance(info, inspect.StructType)
            made = self._readers[key] = _message_reader(info, self._forms, tolerant, fields)
            for each, name, wire in self._forms.fields(info):
                # The descriptor keeps its identity while it is referenced here.
                target = descriptor.fields_by_name.get(name)
                if target is not None:
                    read_field = self._field_reader(_of_set_field(each.type), target, tolerant)
                    if tolerant and read_field is not None:
                        read_field = partial(tolerance.read_below, wire, read_field)
                    fields[target] = _Field(each.name, wire, read_field)
        return made

    def _field_reader(self, info: inspect.Type, target: Any, tolerant: bool) -> Read | None:
        """Return a function that reads a set field; ``None`` if protobuf's value is used
        directly."""
        match info:
            case inspect.StructType(cls=cls):
                return self._reader(cls, target.message_type, tolerant)
            case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)):
                read_item = self._reader(cls, target.message_type, tolerant)
                return (tolerance.tuple_reader if tolerant else _tuple)(read_item)
            case inspect.VarTupleType(item_type=inspect.StrType()):
                return tuple
            case inspect.DictType(value_type=inspect.AnyType()):
                return read_struct
            case inspect.DictType(value_type=inspect.StructType(cls=cls)):
                read_item = self._reader(cls, _in_map(target), tolerant)
                return (tolerance.map_reader if tolerant else _map)(read_item)
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


def _in_map(field: Any) -> Any:
    """Return the descriptor of the messages in a map."""
    return field.message_type.fields_by_name["value"].message_type


def _of_set_field(info: inspect.Type) -> inspect.Type:
    """Return the type of a field if it is set."""
    if isinstance(info, inspect.UnionType):
        (info,) = [case for case in info.types if not isinstance(case, inspect.NoneType)]
    return info


def _kept(field: inspect.Field) -> str:
    """Return the attribute with the value of a field, which distinguishes null from unset."""
    return "kept_data" if isinstance(field.type, inspect.AnyType) else field.name


def _absent(field: inspect.Field) -> Any:
    """Return the struct value of an unset field, which is not written.

    An empty text, tuple or false that is the default is not written either.
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


def _message_reader(
    info: inspect.StructType, forms: VersionForms, tolerant: bool, fields: dict[Any, _Field]
) -> Read:
    construct = (tolerant_constructor if tolerant else strict_constructor)(info, forms)

    def read_message(message: Message) -> Any:
        given: dict[str, Any] = {}
        problems: list[Problem] = []
        for descriptor, item in message.ListFields():
            name, wire, read = fields[descriptor]
            try:
                given[name] = item if read is None else read(item)
            except InvalidValue as wrong:
                problems += wrong.under(wire)
                if not tolerant:
                    given[name] = None
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
    members = dict(enumerate(cls))  # members are defined in the order of their numbers
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
