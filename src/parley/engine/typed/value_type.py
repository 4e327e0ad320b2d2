"""A type as JSON sees it: its schema, reading a value, and checking one that is sent."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from parley.engine.content import refuse_non_finite
from parley.engine.typed.annotations import class_of, parts_of, plain
from parley.engine.typed.formats import add_formats
from parley.engine.typed.mismatch import Mismatch, UnsupportedType, Violation
from parley.engine.typed.schema import hoisted, standalone
from parley.engine.typed.through_pydantic import PydanticType, hooked, uses_pydantic
from parley.engine.typed.violations import violations_of
from parley.model.encoding import from_wire, to_wire
from parley.model.struct import Timestamp

SUPPORTED = (
    "dataclasses, msgspec structs, TypedDicts, pydantic models, enums, Literal, str, int, float, "
    "bool, datetime, date, time, timedelta, UUID, Decimal, bytes, and lists, dicts and unions of "
    "them"
)

_EXACT = 2**53


class ValueType:
    """A type whose values are JSON.

    ``schema`` describes what ``read`` takes, and ``output_schema`` what ``dump`` returns.
    Raises ``UnsupportedType`` for a type that has no JSON form.
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
        """The type as authors write it."""
        return _named(self.kind)

    @property
    def output_schema(self) -> dict[str, Any]:
        """The JSON Schema of values that are sent."""
        return _whole(self._reader.schema(output=True))

    def read(self, data: Any) -> Any:
        """Return JSON data as a value. Raises ``Mismatch`` that names every field."""
        try:
            return self._reader.read(data)
        except RecursionError:
            raise Mismatch([Violation((), "expected a value that is nested less deeply")]) from None

    def dump(self, value: Any) -> Any:
        """Return a value as JSON data. Raises ``Mismatch`` for a value that does not fit."""
        return self._reader.dump(value)


class _MsgspecType:
    """A type that msgspec reads and writes; pydantic models within it are pydantic's."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._has_dataclasses = any(dataclasses.is_dataclass(class_of(k)) for k in parts_of(kind))
        try:
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, dec_hook=_decode)
            self.schema(output=False)
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
        except msgspec.ValidationError:
            raise Mismatch(violations_of(self.kind, data, _convert, _foreign)) from None

    def _whole(self, value: Any) -> Any:
        if self._has_dataclasses:
            _fill_defaults(value)
        return value

    def dump(self, value: Any) -> Any:
        """Return ``value`` as JSON data. Raises ``Mismatch``."""
        try:
            data = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)
            refuse_non_finite(data)
        except (TypeError, ValueError, RecursionError) as error:
            raise Mismatch([Violation((), str(error))]) from error
        self.read(data)
        return data


def _whole(schema: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in schema.items() if key != "$defs"}
    return standalone(rest, schema.get("$defs", {}))


def _fill_defaults(value: Any) -> None:
    """Give the dataclasses in a value the defaults that msgspec leaves to their classes.

    Else ``vars`` and msgspec itself, when it writes them, would miss those fields.
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


def _foreign(kind: Any, data: Any) -> tuple[Violation, ...] | None:
    """Return the violations of a pydantic model within a type that msgspec reads."""
    pydantic = hooked(plain(kind))
    if pydantic is None:
        return None
    try:
        pydantic.read(data)
    except Mismatch as mismatch:
        return mismatch.violations
    return ()


def _with_integers(data: Any) -> Any:
    if isinstance(data, float) and data.is_integer() and abs(data) <= _EXACT:
        return int(data)
    if isinstance(data, dict):
        return {key: _with_integers(value) for key, value in data.items()}
    return [_with_integers(item) for item in data] if isinstance(data, list) else data


def _named(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)
