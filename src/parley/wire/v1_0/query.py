"""Requests as query parameters, and back (specification §11.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from parley.model.errors import FieldViolation
from parley.model.struct import A2AStruct, Timestamp, to_wire

OTHER_NAMES = {"lastUpdatedAfter": "statusTimestampAfter"}
"""What others call parameters that narrow a list: the Go SDK (2.4), as drafts of 1.0 did."""

_BOOLEANS = {"true": True, "false": False}


class _Parameter(NamedTuple):
    """``read`` makes a JSON value of a parameter's text, or is ``None`` for an object."""

    wire: str
    read: Callable[[str], Any] | None
    repeated: bool


def read_query(
    kind: type[A2AStruct], query: Sequence[tuple[str, str]]
) -> tuple[dict[str, Any], list[FieldViolation]]:
    """Return the JSON members of a request in a query, and what is wrong with it.

    Names may have both spellings of ProtoJSON; unknown ones are ignored. A list repeats its name,
    or has commas.
    """
    parameters = _parameters(kind)
    members: dict[str, Any] = {}
    wrong: list[FieldViolation] = []
    for name, text in query:
        known = parameters.get(name)
        if known is None:
            continue
        wire, read, repeated = known
        if read is None:
            wrong.append(FieldViolation(wire, "a query cannot carry an object"))
        elif repeated:
            members.setdefault(wire, []).extend(map(read, text.split(",")))
        elif wire in members:
            wrong.append(FieldViolation(wire, "given more than once"))
        else:
            members[wire] = read(text)
    return members, wrong


def write_query(members: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the query parameters for the JSON members of a request."""
    return [
        (name, _text(item))
        for name, value in members.items()
        for item in (value if isinstance(value, list) else [value])
    ]


def members_of(request: A2AStruct) -> dict[str, Any]:
    """Return the members of the JSON of ``request``."""
    members: dict[str, Any] = msgspec.to_builtins(request, enc_hook=to_wire)
    return members


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@cache
def _parameters(kind: type[A2AStruct]) -> dict[str, _Parameter]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    parameters = {}
    for field in info.fields:
        parameter = _parameter(field)
        parameters[field.encode_name] = parameters[field.name] = parameter
    return parameters | {
        other: parameters[name] for other, name in OTHER_NAMES.items() if name in parameters
    }


def _parameter(field: inspect.Field) -> _Parameter:
    info, repeated = field.type, False
    if isinstance(info, inspect.UnionType):
        info = next(case for case in info.types if not isinstance(case, inspect.NoneType))
    if isinstance(info, inspect.VarTupleType):
        info, repeated = info.item_type, True
    return _Parameter(field.encode_name, _reader(info), repeated)


def _reader(info: inspect.Type) -> Callable[[str], Any] | None:
    match info:
        case inspect.StructType() | inspect.DictType():
            return None
        case inspect.BoolType():
            return lambda text: _BOOLEANS.get(text, text)
        case inspect.CustomType(cls=cls) if cls is Timestamp:
            # A plus that was not quoted has become a space, which no timestamp has.
            return lambda text: text.replace(" ", "+")
    return str
