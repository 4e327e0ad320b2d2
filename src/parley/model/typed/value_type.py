"""A type with a JSON form: its schema, reading a value, and checking a value to send.

pydantic is imported only for types that come from it. The data of a message is its first data part,
or its text if that is a JSON object.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import typing
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from parley.model.parts import Message
from parley.model.struct import Timestamp, from_wire, to_wire
from parley.model.typed.schema import add_formats, class_of, hoisted, parts_of, plain, standalone
from parley.model.typed.violations import Mismatch, UnsupportedType, Violation, violations_of

SUPPORTED = (
    "dataclasses, msgspec structs, TypedDicts, pydantic models, enums, Literal, str, int, float, "
    "bool, datetime, date, time, timedelta, UUID, Decimal, bytes, and lists, dicts and unions of "
    "them"
)

_EXACT = 2**53


class ValueType:
    """A type whose values are JSON.

    ``schema`` describes the input of ``read``, and ``output_schema`` the result of ``dump``. Raises
    ``UnsupportedType`` for a type that has no JSON form.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        try:
            self._reader = PydanticType(kind) if uses_pydantic(kind) else _MsgspecType(kind)
        except NameError as error:
            raise UnsupportedType(
                f"{_named(kind)} has annotations that cannot be resolved ({error}); define what "
                "they name at the top of the module"
            ) from None
        self.schema = _whole(self._reader.schema(output=False))

    def __repr__(self) -> str:
        return f"ValueType({self.name})"

    @property
    def name(self) -> str:
        """The type in an author's notation."""
        return _named(self.kind)

    @property
    def output_schema(self) -> dict[str, Any]:
        """The JSON Schema of sent values."""
        return _whole(self._reader.schema(output=True))

    def read(self, data: Any) -> Any:
        """Return JSON data as a value. Raises ``Mismatch`` with the first wrong fields."""
        try:
            return self._reader.read(data)
        except RecursionError:
            raise Mismatch([Violation((), "expected a value that is nested less deeply")]) from None

    def dump(self, value: Any) -> Any:
        """Return a value as JSON data. Raises ``Mismatch`` for a value that does not fit."""
        return self._reader.dump(value)


class _MsgspecType:
    """A type that msgspec reads and writes, except for pydantic models within it."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._has_dataclasses = any(dataclasses.is_dataclass(class_of(k)) for k in parts_of(kind))
        try:
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, dec_hook=_decode)
            self._schema = self.schema(output=False)
        except (TypeError, ValueError) as error:
            if isinstance(error, UnsupportedType):
                raise
            reason = str(error).partition("\n")[0].removesuffix(" requires either:")
            raise UnsupportedType(
                f"{_named(kind)} cannot be read from JSON ({reason}); use {SUPPORTED}"
            ) from None

    def schema(self, *, output: bool) -> dict[str, Any]:
        """Return the JSON Schema."""
        defs: dict[str, Any] = {}

        def schema_of(custom: Any) -> dict[str, Any]:
            if custom is Timestamp:
                return {"type": "string", "format": "date-time"}
            pydantic = hooked(custom)
            if pydantic is None:
                raise UnsupportedType(
                    f"{_named(custom)} has no JSON form that Parley knows; use {SUPPORTED}"
                )
            return hoisted(pydantic.schema(output=output), defs)

        [schema], own = msgspec.json.schema_components(
            [self.kind], schema_hook=schema_of, ref_template="#/$defs/{name}"
        )
        add_formats(self.kind, schema, own)
        return {**schema, "$defs": {**own, **defs}}

    def read(self, data: Any) -> Any:
        """Return ``data`` as a value. Raises ``Mismatch``."""
        try:
            return self._whole(self._decoder.decode(msgspec.json.encode(data)))
        except msgspec.ValidationError:
            data = _with_integers(data)  # 1.0 is an integer in JSON Schema
        try:
            return self._whole(_convert(data, self.kind))
        except msgspec.ValidationError as error:
            raise Mismatch(violations_of(error, data, self._schema)) from None

    def _whole(self, value: Any) -> Any:
        if self._has_dataclasses:
            _fill_defaults(value)
        return value

    def dump(self, value: Any) -> Any:
        """Return ``value`` as JSON data. Raises ``Mismatch``."""
        try:
            data = to_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise Mismatch([Violation((), str(error))]) from error
        self.read(data)
        return data


def _whole(schema: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in schema.items() if key != "$defs"}
    return standalone(rest, schema.get("$defs", {}))


def _fill_defaults(value: Any) -> None:
    """Set the defaults that msgspec leaves to the classes of dataclasses in a value.

    Otherwise ``vars``, and msgspec itself when it writes them, would miss those fields.
    """
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending.extend(each.values())
        elif isinstance(each, list | tuple | set | frozenset):
            pending.extend(each)
        elif isinstance(each, msgspec.Struct):
            pending.extend(getattr(each, name) for name in each.__struct_fields__)
        elif dataclasses.is_dataclass(each) and hasattr(each, "__dict__"):
            for field in dataclasses.fields(each):
                held = getattr(each, field.name, None)
                if field.name not in each.__dict__ and hasattr(type(each), field.name):
                    object.__setattr__(each, field.name, held)
                pending.append(held)


def _convert(data: Any, kind: Any) -> Any:
    return msgspec.convert(data, kind, str_keys=True, dec_hook=_decode)


def _decode(kind: Any, data: Any) -> Any:
    pydantic = hooked(kind)
    return from_wire(kind, data) if pydantic is None else pydantic.read(data)


def _encode(value: Any) -> Any:
    pydantic = hooked(type(value))
    return to_wire(value) if pydantic is None else pydantic.dump(value)


def _with_integers(data: Any) -> Any:
    if isinstance(data, float) and data.is_integer() and abs(data) <= _EXACT:
        return int(data)
    if isinstance(data, dict):
        return {key: _with_integers(value) for key, value in data.items()}
    return [_with_integers(item) for item in data] if isinstance(data, list) else data


def _named(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


MAX_ERRORS = 1000
"""The number of errors above which pydantic's messages are left out: it makes all or none."""

_MODULES = ("pydantic", "pydantic_core", "annotated_types")


def is_pydantic(kind: Any) -> bool:
    """Return whether a type is a class of pydantic, or is annotated with its constraints."""
    return is_model(kind) or has_constraints(kind) or _is_own(plain(kind))


def is_model(kind: Any) -> bool:
    """Return whether a type is a pydantic model or dataclass."""
    kind = plain(kind)
    owner = typing.get_origin(kind) or kind
    return isinstance(owner, type) and hasattr(owner, "__pydantic_validator__")


def has_constraints(kind: Any) -> bool:
    """Return whether a type is annotated with constraints of pydantic."""
    if typing.get_origin(kind) is not typing.Annotated:
        return False
    return any(_is_own(type(each)) or _is_own(each) for each in kind.__metadata__)


def _is_own(kind: Any) -> bool:
    module = getattr(kind, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in _MODULES


def uses_pydantic(kind: Any) -> bool:
    """Return whether pydantic must read values of ``kind``: it occurs in it, outside of structs.

    Raises ``UnsupportedType`` for a msgspec struct in which pydantic's constraints would be lost.
    """
    has_struct = has_pydantic = False
    constrained: Any = None
    for part in parts_of(kind):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            has_struct = True
        elif is_pydantic(part):
            has_pydantic = True
            if has_constraints(part):
                constrained = part
    if has_struct and constrained is not None:
        raise UnsupportedType(
            f"{constrained} is in a msgspec struct, which ignores constraints of pydantic; "
            "use msgspec.Meta there"
        )
    return has_pydantic and not has_struct


class PydanticType:
    """A type that pydantic reads and writes. Raises ``UnsupportedType``."""

    def __init__(self, kind: Any) -> None:
        try:
            import pydantic
        except ImportError:
            raise UnsupportedType(f"{kind} needs pydantic, which is not installed") from None
        self._pydantic = pydantic
        self.kind = kind
        try:
            self._adapter: Any = pydantic.TypeAdapter(kind)
            self._adapter.json_schema()
        except (pydantic.errors.PydanticUserError, NameError) as error:
            reason = str(error).partition("\n")[0]
            raise UnsupportedType(f"pydantic cannot read {kind}: {reason}") from None

    def schema(self, *, output: bool) -> dict[str, Any]:
        """Return the JSON Schema of read values, or of written values."""
        made: dict[str, Any] = self._adapter.json_schema(
            ref_template="#/$defs/{model}", mode="serialization" if output else "validation"
        )
        return made

    def read(self, data: Any) -> Any:
        """Return ``data`` as a value. Raises ``Mismatch``."""
        return self._validated(lambda: self._adapter.validate_json(msgspec.json.encode(data)))

    def dump(self, value: Any) -> Any:
        """Return a value as JSON data. Raises ``Mismatch`` for a value that does not fit."""
        value = self._validated(lambda: self._adapter.validate_python(value))
        with contextlib.suppress(TypeError):  # before pydantic 2.11 there is no by_name
            # pydantic does not validate models again, which may have been changed since.
            self._validated(lambda: self._adapter.validate_python(_raw(value), by_name=True))
        try:
            data = self._adapter.dump_python(value, mode="json", by_alias=True, warnings="error")
            refuse_non_finite(data)
        except (ValueError, TypeError) as error:
            raise Mismatch([Violation((), str(error))]) from error
        return data

    def _validated(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._pydantic.ValidationError as error:
            raise Mismatch(violations_in(error)) from None


def violations_in(error: Any) -> list[Violation]:
    """Return the violations in a pydantic error, with its messages."""
    if error.error_count() > MAX_ERRORS:
        return [Violation((), f"{error.error_count():,} values in it do not fit")]
    return [
        Violation(tuple(each["loc"]), each["msg"])
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def hooked(kind: Any) -> PydanticType | None:
    """Return the reader of a pydantic model inside a type that msgspec reads."""
    if "pydantic" not in sys.modules or not is_model(kind):
        return None
    made = _HOOKED.get(kind)
    if made is None:
        made = _HOOKED[kind] = PydanticType(kind)
    return made


_HOOKED: dict[Any, PydanticType] = {}


def _raw(value: Any) -> Any:
    """Return a value with its models replaced by their fields, so that they are checked again."""
    fields = getattr(type(value), "__pydantic_fields__", None)
    if fields is not None and not isinstance(value, type):
        held = vars(value) if hasattr(value, "__dict__") else {}
        made = {name: _raw(held[name]) for name in fields if name in held}
        if "root" in fields and len(fields) == 1 and hasattr(type(value), "model_validate"):
            return made["root"]
        return {**made, **(getattr(value, "__pydantic_extra__", None) or {})}
    if type(value) is list:
        return [_raw(each) for each in value]
    if type(value) is tuple:
        return tuple(_raw(each) for each in value)
    if type(value) is dict:
        return {key: _raw(each) for key, each in value.items()}
    return value


def to_json(value: Any) -> Any:
    """Return a value of any supported type as JSON data. Raises ``TypeError``, ``ValueError``."""
    data = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)
    refuse_non_finite(data)
    return data


def refuse_non_finite(value: object) -> None:
    """Raise ``ValueError`` for data with a number that JSON does not have."""
    pending: list[object] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
            raise ValueError(f"JSON has no {item}; send a string or null instead")
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)


def data_of(message: Message) -> Any:
    """Return the value of the first data part, else the JSON object in the text, else ``UNSET``."""
    for part in message.parts:
        if part.has_data:
            return part.data
    return object_in(message.text)


def object_in(text: str) -> Any:
    """Return the JSON object in a text, ``UNSET`` if it is not one."""
    found = json_in(text) if text.lstrip().startswith("{") else UNSET
    return found if isinstance(found, dict) else UNSET


def json_in(text: str) -> Any:
    """Return the JSON value in a text, ``UNSET`` if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return UNSET


def read_text(kind: ValueType, text: str) -> Any:
    """Return a text as a value: the text itself, or its JSON value. Raises ``Mismatch``."""
    try:
        return kind.read(text)
    except Mismatch:
        data = json_in(text)
        if data is UNSET:
            raise
    return kind.read(data)


def read_answer(kind: ValueType, message: Message) -> Any:
    """Return the value in the answer to a question. Raises ``Mismatch``.

    A text that is not a JSON object is read as text, which is how people answer.
    """
    data = data_of(message)
    return read_text(kind, message.text.strip()) if data is UNSET else kind.read(data)
