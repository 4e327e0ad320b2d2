"""Reading JSON with ProtoJSON's forgiveness, and finding every field that is wrong.

For each type of the data model a reader is made once from its struct. Readers take what a JSON
parser returns and either return the value or raise ``Wrong``, which collects what is wrong below.

Requests are read strictly. Answers have readers that forgive more (``wire.forgiveness``): they lose
a field that is wrong, and keep the rest.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple

from msgspec import inspect

from parley.model.struct import Timestamp, WrongField
from parley.model.tasks import TaskState
from parley.wire.json import tolerance

Read = Callable[[Any], Any]

MAX_PROBLEMS = 20
"""How many problems are worth telling: a body full of them must not make a huge answer."""


class Wrong(Exception):
    """What is wrong with a value: pairs of the path below it and what would be right."""

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        self.problems = list(problems)[:MAX_PROBLEMS]
        super().__init__(self.problems)

    def under(self, name: str) -> list[tuple[str, str]]:
        """Return the problems as seen from the value that holds this one as ``name``."""
        return [
            (f"{name}{path}" if not path or path[0] == "[" else f"{name}.{path}", description)
            for path, description in self.problems
        ]


def expected(what: str, value: object) -> Wrong:
    """Return the complaint that ``value`` is of another kind than ``what``."""
    return Wrong([("", f"expected {what}, got {_name_of(value)}")])


_readers: dict[tuple[Any, bool], Read] = {}


def reader(kind: Any, *, forgiving: bool = False) -> Read:
    """Return the reader of a type of the data model: a strict one, or a ``forgiving`` one."""
    made = _readers.get((kind, forgiving))
    if made is None:
        made = _readers[kind, forgiving] = _reader(inspect.type_info(kind), forgiving)
    return made


def _reader(info: inspect.Type, forgiving: bool) -> Read:
    match info:
        case inspect.StructType():
            return _struct(info, forgiving)
        case inspect.UnionType(types=types):
            one_of = [case for case in types if not isinstance(case, inspect.NoneType)]
            if len(one_of) == 1:  # the field is optional; nulls are dropped by its struct
                return _reader(one_of[0], forgiving)
        case inspect.VarTupleType(item_type=item, min_length=least):
            return _tuple(_reader(item, forgiving), least or 0, forgiving)
        case inspect.DictType(value_type=inspect.AnyType()):
            return _object
        case inspect.DictType(value_type=item):
            return _map(_reader(item, forgiving), forgiving)
        case inspect.EnumType(cls=cls):
            return _forgiven(_enum(cls), tolerance.member_of(cls), forgiving)
        case inspect.StrType(min_length=least):
            strict = _non_empty_string if least else _string
            return _forgiven(strict, tolerance.text_of, forgiving)
        case inspect.IntType(ge=lowest, le=highest):
            return _int(lowest or 0, highest or 0)
        case inspect.BoolType():
            return _forgiven(_bool, tolerance.bool_of, forgiving)
        case inspect.BytesType():
            return _forgiven(_bytes, tolerance.bytes_of, forgiving)
        case inspect.CustomType(cls=cls) if cls is Timestamp:
            return _forgiven(_timestamp, tolerance.moment_of, forgiving)
        case inspect.AnyType():
            return lambda value: value
    raise TypeError(f"the data model has no fields like {info!r}")


def _forgiven(strict: Read, guess: Read, forgiving: bool) -> Read:
    """Return ``strict``, or what makes the best of a value that it refuses.

    ``guess`` returns ``None`` for what cannot be made anything of.
    """
    if not forgiving:
        return strict

    def read(value: Any) -> Any:
        try:
            return strict(value)
        except Wrong as wrong:
            guessed = guess(value)
            if guessed is None:
                raise
            if isinstance(guessed, Enum) and guessed.name == "UNSPECIFIED":
                tolerance.note(wrong.problems)  # the rest is understood, and nothing lost
            return guessed

    return read


class _Field(NamedTuple):
    name: str
    wire: str
    read: Read
    takes_null: bool


def _struct(info: inspect.StructType, forgiving: bool) -> Read:
    make = info.cls
    fields: dict[str, _Field] = {}
    required: list[tuple[_Field, Callable[[], Any] | None]] = []
    for each in info.fields:
        takes_null = isinstance(each.type, inspect.AnyType)  # google.protobuf.Value has a null
        field = _Field(each.name, each.encode_name, _reader(each.type, forgiving), takes_null)
        fields[field.wire] = fields[field.name] = field
        if each.required:
            required.append((field, left_out(each.type)))

    def hint(value: dict[str, Any]) -> str:
        unknown = [repr(key[:40]) for key in value if key not in fields]
        return f" (unknown here: {', '.join(unknown[:5])})" if unknown else ""

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise expected("an object", value)
        given: dict[str, Any] = {}
        problems: list[tuple[str, str]] = []
        for key, item in value.items():
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
            except Wrong as wrong:
                given[name] = None
                problems += wrong.under(wire)
        for field, empty in required:
            if field.name not in given:
                if empty is None:
                    problems.append((field.wire, f"required, but missing{hint(value)}"))
                else:
                    given[field.name] = empty()
        if not problems:
            try:
                return make(**given)
            except WrongField as wrong:
                problems.append((fields[wrong.field].wire, wrong.description))
            except ValueError as wrong:
                problems.append(("", f"{wrong}{hint(value)}"))
        raise Wrong(problems)

    put_together = assembler(info)

    def forgive(value: Any) -> Any:
        if type(value) is not dict:
            raise expected("an object", value)
        given: dict[str, Any] = {}
        problems: list[tuple[str, str]] = []
        for key, item in value.items():
            field = fields.get(key)
            if field is None or field.name in given or (item is None and not field.takes_null):
                continue
            try:
                given[field.name] = tolerance.below(field.wire, field.read, item)
            except Wrong as wrong:
                problems += wrong.under(field.wire)
        return put_together(given, problems)

    return forgive if forgiving else read


def assembler(
    info: inspect.StructType,
) -> Callable[[dict[str, Any], list[tuple[str, str]]], Any]:
    """Return what makes a struct of an answer from the fields that could be read.

    The others are left out, or, where they are required, filled with what says nothing. Raises
    ``Wrong`` when too little is there to tell that it is meant as such a struct.
    """
    make = info.cls
    needs = {each.name: each for each in info.fields if each.required}
    # What is given must show that such a struct is meant: several fields that it must have do.
    undelivered = set()
    if any(left_out(each.type) is None for each in needs.values()):
        undelivered = set(needs) if len(needs) > 1 else {each.name for each in info.fields}
    wire = {each.name: each.encode_name for each in info.fields}

    def put_together(given: dict[str, Any], problems: list[tuple[str, str]]) -> Any:
        if undelivered.isdisjoint(given) and undelivered:
            raise Wrong(problems or [("", "it has none of the members that are due")])
        for name, field in needs.items():
            if name not in given:
                given[name] = blank(field.type)
                if left_out(field.type) is None and not problems:
                    problems.append((wire[name], "required, but missing"))
        amended = False
        while True:
            try:
                made = make(**given)
                break
            except ValueError as wrong:
                name = wrong.field if isinstance(wrong, WrongField) else ""
                description = wrong.description if isinstance(wrong, WrongField) else str(wrong)
                problems.append((wire.get(name, ""), description))
                if name in given and name not in needs:
                    del given[name]
                elif amended or not tolerance.amend(make, given):
                    raise Wrong(problems) from None
                else:
                    amended = True
        tolerance.note(problems)
        return made

    return put_together


def blank(info: inspect.Type) -> Any:
    """Return what stands for a required field of which an answer says nothing."""
    empty = left_out(info)
    if empty is not None:
        return empty()
    match info:
        case inspect.StructType():
            return assembler(info)({each.name: blank(each.type) for each in _needed(info)}, [])
        case inspect.EnumType(cls=cls):
            return next(iter(cls))
        case inspect.VarTupleType():
            return ()
        case inspect.StrType():
            return ""
    raise Wrong([("", "required, but missing")])


def _needed(info: inspect.StructType) -> list[inspect.Field]:
    return [each for each in info.fields if each.required]


def left_out(info: inspect.Type) -> Callable[[], Any] | None:
    """Return what makes a required field that ProtoJSON writers leave out for being empty."""
    match info:
        case inspect.StrType(min_length=None):
            return str
        case inspect.VarTupleType(min_length=None):
            return tuple
        case inspect.DictType():
            return dict
        case inspect.IntType():
            return int
        case inspect.EnumType(cls=cls) if cls is TaskState:
            return lambda: TaskState.UNSPECIFIED
    return None


def _tuple(read_item: Read, least: int, forgiving: bool) -> Read:
    def forgive(value: Any) -> tuple[Any, ...]:
        items = []
        if type(value) is not list:
            if not isinstance(value, str | dict):
                raise expected("an array", value)
            tolerance.note(expected("an array", value).problems)
            value = [value]
        for place, item in enumerate(value):
            try:
                items.append(tolerance.below(f"[{place}]", read_item, item))
            except Wrong as wrong:
                tolerance.note(wrong.under(f"[{place}]"))
        return tuple(items)

    if forgiving:
        return forgive

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise expected("an array", value)
        if len(value) < least:
            raise Wrong([("", "must not be empty")])
        items = []
        problems: list[tuple[str, str]] = []
        for place, item in enumerate(value):
            try:
                items.append(read_item(item))
            except Wrong as wrong:
                problems += wrong.under(f"[{place}]")
                if len(problems) >= MAX_PROBLEMS:
                    break
        if problems:
            raise Wrong(problems)
        return tuple(items)

    return read


def _map(read_item: Read, forgiving: bool) -> Read:
    def forgive(value: Any) -> dict[str, Any]:
        items = {}
        for key, item in _object(value).items():
            try:
                items[key] = tolerance.below(key[:40], read_item, item)
            except Wrong as wrong:
                tolerance.note(wrong.under(key[:40]))
        return items

    if forgiving:
        return forgive

    def read(value: Any) -> dict[str, Any]:
        items = {}
        problems: list[tuple[str, str]] = []
        for key, item in _object(value).items():
            try:
                items[key] = read_item(item)
            except Wrong as wrong:
                problems += wrong.under(key[:40])
                if len(problems) >= MAX_PROBLEMS:
                    break
        if problems:
            raise Wrong(problems)
        return items

    return read


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise expected("an object", value)
    return value


def _enum(cls: type[Enum]) -> Read:
    members = {member.value: member for member in cls}
    numbers = dict(enumerate(cls))  # the order of definition is that of the proto's numbers
    allowed = ", ".join([name for name in members if not name.endswith("_UNSPECIFIED")])

    def read(value: Any) -> Enum:
        member = None
        if isinstance(value, str):
            member = members.get(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            member = numbers.get(int(value)) if value == int(value) else None
        if member is None:
            got = f"{value[:40]!r}" if isinstance(value, str) else _name_of(value)
            raise Wrong([("", f"expected one of {allowed}; got {got}")])
        return member

    return read


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise expected("a string", value)
    return value


def _non_empty_string(value: Any) -> str:
    text = _string(value)
    if not text:
        raise Wrong([("", "must not be empty")])
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
            raise Wrong([("", f"expected {what}, got {str(value)[:40]}")])
        return number

    return read


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise expected("true or false", value)
    return value


_TO_STANDARD = str.maketrans("-_", "+/")


def _bytes(value: Any) -> bytes:
    text = _string(value).translate(_TO_STANDARD).rstrip("=")
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError:
        raise Wrong([("", "expected base64, but it is malformed")]) from None


def _timestamp(value: Any) -> Timestamp:
    try:
        return Timestamp.parse(_string(value))
    except ValueError as error:
        raise Wrong([("", str(error))]) from None


def _name_of(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")
