"""The JSON of the data model in all forms that peers may write (specification §5.5-5.7).

msgspec reads canonical ProtoJSON in one step. Any other form (original proto names, enum numbers,
nulls, unknown fields, ...) is read by the slower ``readers``, which report the wrong fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache, partial
from itertools import islice
from math import inf
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from parley.model import struct
from parley.model.errors import A2AError, FieldViolation, InvalidParamsError
from parley.model.struct import InvalidField, Timestamp, encode, to_wire
from parley.model.tasks import TaskState
from parley.wire.json import problems as tolerance
from parley.wire.json.problems import (
    MAX_PROBLEMS,
    InvalidValue,
    Problem,
    expected,
    kind_name,
    read_items,
    read_members,
)
from parley.wire.json.syntax import Bytes, check_limits, not_json


class VersionForms(msgspec.Struct, frozen=True, eq=False):
    """The types of the data model that have another form in a version.

    ``names`` has the names of fields, in Python and in JSON; ``None`` stands for a field that the
    version does not define. ``types`` maps types to structs, whose ``of()`` and ``to_model()``
    translate. ``values`` has the JSON of enum members.
    """

    names: Mapping[type, Mapping[str, tuple[str, str] | None]] = {}
    types: Mapping[type, Any] = {}
    values: Mapping[Any, str] = {}

    def fields(self, info: inspect.StructType) -> Iterator[tuple[inspect.Field, str, str]]:
        """Yield the fields that the version has, with their names in Python and in JSON."""
        names = self.names.get(info.cls, {})
        for each in info.fields:
            named = names.get(each.name, (each.name, each.encode_name))
            if named is not None:
                yield each, *named


LATEST_FORMS = VersionForms()


def strict_constructor(
    info: inspect.StructType, forms: VersionForms = LATEST_FORMS
) -> Callable[..., Any]:
    """Return a constructor of a struct that raises ``InvalidValue`` if anything is wrong.

    Its arguments are the fields, the problems with them so far and, for a hint at unknown members,
    the JSON object that contains them.
    """
    make = info.cls
    wire = {each.name: name for each, _, name in forms.fields(info)}
    known = {name for _, *names in forms.fields(info) for name in names}
    required = [(each.name, empty_value(each.type)) for each in _required(info)]

    def construct(
        given: dict[str, Any], problems: list[Problem], value: Mapping[str, Any] | None = None
    ) -> Any:
        for name, empty in required:
            if name not in given:
                if empty is None:
                    problems.append((wire[name], f"required, but missing{hint(value)}"))
                else:
                    given[name] = empty()
        if not problems:
            try:
                return make(**given)
            except InvalidField as wrong:
                problems.append((wire[wrong.field], wrong.description))
            except ValueError as wrong:
                problems.append(("", f"{wrong}{hint(value)}"))
        raise InvalidValue(problems)

    def hint(value: Mapping[str, Any] | None) -> str:
        unknown = [repr(key[:40]) for key in value or () if key not in known]
        return f" (unknown here: {', '.join(unknown[:5])})" if unknown else ""

    return construct


def tolerant_constructor(
    info: inspect.StructType, forms: VersionForms = LATEST_FORMS
) -> Callable[..., Any]:
    """Return a constructor of a struct of an answer, from the fields that could be read.

    It leaves out the other fields, or sets required fields to a placeholder. Raises
    ``InvalidValue`` when the fields do not show that this struct is meant.
    """
    make = info.cls
    needs = {each.name: each for each in _required(info)}
    # A struct with several required fields needs at least one of these.
    identifying = set()
    if any(empty_value(each.type) is None for each in needs.values()):
        identifying = set(needs) if len(needs) > 1 else {each.name for each in info.fields}
    wire = {each.name: name for each, _, name in forms.fields(info)}

    def construct(given: dict[str, Any], problems: list[Problem], _: object = None) -> Any:
        if identifying.isdisjoint(given) and identifying:
            raise InvalidValue(problems or [("", "it has none of the required members")])
        for name, field in needs.items():
            if name not in given:
                given[name] = placeholder(field.type)
                if empty_value(field.type) is None and not problems:
                    problems.append((wire[name], "required, but missing"))
        repaired = False
        while True:
            try:
                made = make(**given)
                break
            except ValueError as wrong:
                name = wrong.field if isinstance(wrong, InvalidField) else ""
                description = wrong.description if isinstance(wrong, InvalidField) else str(wrong)
                problems.append((wire.get(name, ""), description))
                if name in given and name not in needs:
                    del given[name]
                elif repaired or not tolerance.repair(make, given):
                    raise InvalidValue(problems) from None
                else:
                    repaired = True
        tolerance.report(problems)
        return made

    return construct


def placeholder(info: inspect.Type) -> Any:
    """Return a placeholder for a required field that an answer lacks."""
    empty = empty_value(info)
    if empty is not None:
        return empty()
    match info:
        case inspect.StructType():
            fields = {each.name: placeholder(each.type) for each in _required(info)}
            return tolerant_constructor(info)(fields, [])
        case inspect.EnumType(cls=cls):
            return next(iter(cls))
        case inspect.VarTupleType():
            return ()
        case inspect.StrType():
            return ""
    raise InvalidValue([("", "required, but missing")])


def empty_value(info: inspect.Type) -> Callable[[], Any] | None:
    """Return a function for the empty value of a required field that ProtoJSON may leave out."""
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


def _required(info: inspect.StructType) -> list[inspect.Field]:
    return [each for each in info.fields if each.required]


Read = Callable[[Any], Any]

_readers: dict[tuple[Any, bool, VersionForms], Read] = {}


def reader(kind: Any, *, tolerant: bool = False, forms: VersionForms = LATEST_FORMS) -> Read:
    """Return the strict or the ``tolerant`` reader of a type of the data model."""
    made = _readers.get((kind, tolerant, forms))
    if made is None:
        made = _reader(inspect.type_info(kind), tolerant, forms)
        _readers[kind, tolerant, forms] = made
    return made


def _reader(info: inspect.Type, tolerant: bool, forms: VersionForms) -> Read:
    match info:
        case inspect.StructType():
            form = forms.types.get(info.cls)
            if form is None:
                return _struct(info, tolerant, forms)
            read = reader(form, tolerant=tolerant, forms=forms)
            return lambda value: read(value).to_model()
        case inspect.UnionType(types=types):
            cases = [case for case in types if not isinstance(case, inspect.NoneType)]
            if len(cases) == 1:  # the field is optional; its struct drops nulls
                return _reader(cases[0], tolerant, forms)
        case inspect.VarTupleType(item_type=item, min_length=min_length):
            return _tuple(_reader(item, tolerant, forms), min_length or 0, tolerant)
        case inspect.DictType(value_type=inspect.AnyType()):
            return _object
        case inspect.DictType(value_type=item):
            return _map(_reader(item, tolerant, forms), tolerant)
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
    """Return ``strict``; if ``tolerant``, followed by ``guess`` for values that it rejects.

    ``guess`` returns ``None`` for a value without a likely meaning.
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
    spelled: str
    wire: str
    read: Read
    takes_null: bool


def _struct(info: inspect.StructType, tolerant: bool, forms: VersionForms) -> Read:
    fields: dict[str, _Field] = {}
    for each, spelled, wire in forms.fields(info):
        takes_null = isinstance(each.type, inspect.AnyType)  # google.protobuf.Value has a null
        read_field = _reader(each.type, tolerant, forms)
        if tolerant:
            read_field = partial(tolerance.read_below, wire, read_field)
        fields[wire] = fields[spelled] = _Field(each.name, spelled, wire, read_field, takes_null)
    construct = (tolerant_constructor if tolerant else strict_constructor)(info, forms)

    def read(value: Any) -> Any:
        given: dict[str, Any] = {}
        problems: list[Problem] = []
        for key, item in _object(value).items():
            field = fields.get(key)
            if field is None:
                continue
            name, spelled, wire, read_item, takes_null = field
            if item is None and not takes_null:
                continue
            if name in given:
                if not tolerant:
                    problems.append((wire, f"given twice, also as {spelled}"))
                continue
            try:
                given[name] = read_item(item)
            except InvalidValue as wrong:
                problems += wrong.under(wire)
                if not tolerant:
                    given[name] = None
        return construct(given, problems, value)

    return read


def _tuple(read_item: Read, min_length: int, tolerant: bool) -> Read:
    read_right = tolerance.tuple_reader(read_item)

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            if not tolerant or not isinstance(value, str | dict):
                raise expected("an array", value)
            tolerance.report(expected("an array", value).problems)
            value = [value]
        if tolerant:
            return read_right(value)
        if len(value) < min_length:
            raise InvalidValue([("", "must not be empty")])
        return tuple(read_items(enumerate(value), read_item))

    return read


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


__all__ = [
    "check_limits",
    "decode",
    "decode_answer",
    "encode",
    "members_of",
    "parse",
    "parse_answer",
    "read",
    "read_answer",
    "refuse",
]

T = TypeVar("T")

_parse = msgspec.json.Decoder().decode


def decode(data: Bytes, kind: type[T]) -> T:
    """Read a value of the data model.

    Numbers in data and metadata keep their types: integers of any size, and floats. Unknown fields
    are ignored. Required fields must be present; only a field with a meaningful empty value (an
    empty list of tasks) may be missing, because ProtoJSON writers leave it out.

    Raises ``JSONParseError`` when ``data`` is not JSON in UTF-8, ``InvalidParamsError`` when it is
    not a ``kind``, with ``violations`` for the fields, in wire names.
    """
    try:
        return struct.decode(data, kind)
    except (ValueError, RecursionError):  # msgspec's errors and Unicode's are ValueErrors
        return read(parse(data), kind)


def read(
    value: Any,
    kind: type[T],
    wrong: Iterable[FieldViolation] = (),
    forms: VersionForms = LATEST_FORMS,
) -> T:
    """Return the ``kind`` that a parsed JSON value stands for, as ``decode`` does.

    ``wrong`` has problems that are already known; the error names these too.
    """
    violations = list(wrong)
    known = {violation.field for violation in violations}
    try:
        made = reader(kind, forms=forms)(value)
    except InvalidValue as problem:
        violations += [each for each in problem.violations if each.field not in known]
    if violations:
        refuse(violations)
    return made  # type: ignore[no-any-return]


def decode_answer(data: Bytes, kind: type[T]) -> T:
    """Read a value of an answer tolerantly: wrong fields are left out and reported.

    Raises the errors of ``decode`` for any other value.
    """
    try:
        return struct.decode(data, kind)
    except (ValueError, RecursionError):
        return read_answer(parse_answer(data), kind)


def read_answer(value: Any, kind: type[T], forms: VersionForms = LATEST_FORMS) -> T:
    """Return the ``kind`` that a parsed JSON value stands for, as ``decode_answer`` does."""
    try:
        return reader(kind, tolerant=True, forms=forms)(value)  # type: ignore[no-any-return]
    except InvalidValue as wrong:
        refuse(wrong.violations)


def parse_answer(data: Bytes) -> Any:
    """Parse the JSON of an answer, tolerating faults in the JSON.

    Halves of surrogate pairs and invalid UTF-8 become U+FFFD; numbers that JSON does not have or
    that are too large become null or text.
    """
    try:
        return parse(data)
    except A2AError:
        try:
            text = _SURROGATES.sub(_without_half, bytes(data).decode(errors="replace"))
            return json.loads(
                text,
                parse_constant=lambda _: None,
                parse_float=_finite,
                parse_int=lambda digits: int(digits) if len(digits) <= 4300 else digits,
            )
        except (ValueError, RecursionError):
            pass
        raise


# An escape: a whole surrogate pair (1), half of one (2), or another escape.
_SURROGATES = re.compile(
    r"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(u[dD][89a-fA-F].{2})|.)",
    re.DOTALL,
)


def _finite(digits: str) -> float | str:
    number = float(digits)
    return digits if number in (inf, -inf) else number


def _without_half(found: re.Match[str]) -> str:
    return "\\ufffd" if found[2] else found[0]


def parse(data: Bytes) -> Any:
    """Parse JSON into plain Python values.

    Raises ``JSONParseError``, and ``InvalidParamsError`` for a number that is too large.
    """
    try:
        return _parse(data)
    except RecursionError:
        raise InvalidParamsError("nested too deeply") from None
    except msgspec.ValidationError:  # only a number can be invalid here
        description = "the number is too large to be kept; send it as a string"
        paths = list(islice(_oversized_numbers(data), MAX_PROBLEMS))
        refuse([FieldViolation(path, description) for path in paths or [""]])
    except ValueError as error:
        raise not_json(data, error) from None


def members_of(value: Any, forms: VersionForms = LATEST_FORMS) -> Any:
    """Return the JSON of a value of the data model, its objects as dicts."""
    if type(value) in _PLAIN:
        return value
    if type(value) is tuple:
        return [members_of(item, forms) for item in value]
    if isinstance(value, bytes | Enum | Timestamp):
        return forms.values.get(value) or msgspec.to_builtins(value, enc_hook=to_wire)
    if not isinstance(value, msgspec.Struct):
        return value
    form, fields = _written(value.__class__, forms)
    if form is not None:
        value = form.of(value)
    return {
        wire: item if type(item) in _PLAIN else members_of(item, forms)
        for name, wire, default in fields
        if (item := getattr(value, name)) is not default
    }


_PLAIN = frozenset({str, int, bool, dict, type(None)})


@cache
def _written(kind: Any, forms: VersionForms) -> tuple[Any, list[tuple[str, str, Any]]]:
    """Return the form of a type, and its fields with their defaults."""
    form = forms.types.get(kind)
    info = inspect.type_info(form or kind)
    assert isinstance(info, inspect.StructType)
    return form, [(each.name, wire, each.default) for each, _, wire in forms.fields(info)]


def refuse(violations: list[FieldViolation]) -> NoReturn:
    """Raise ``InvalidParamsError`` with all violations, the first of them in its message."""
    field, description = violations[0]
    message = f"{field}: {description}" if field else description
    if len(violations) > 1:
        message += f" (and {len(violations) - 1} more)"
    raise InvalidParamsError(message, violations=tuple(violations)) from None


def _oversized_numbers(data: Bytes) -> Iterator[str]:
    """Yield the paths of numbers that no float, or no integer of 4,300 digits, can hold."""
    try:
        value = json.loads(bytes(data), parse_int=lambda n: int(n) if len(n) <= 4300 else inf)
    except (ValueError, RecursionError):
        return
    pending = [("", value)]
    while pending:
        path, value = pending.pop()
        if value in (inf, -inf):
            yield path
        elif isinstance(value, dict):
            pending += [(f"{path}.{key[:40]}".lstrip("."), item) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [(f"{path}[{index}]", item) for index, item in enumerate(value)]
