"""The run context of a turn as JSON, so that it lives on in a later attempt."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

_ERRORS = (PydanticUserError, msgspec.MsgspecError, TypeError, ValueError, RecursionError)


def encoded(context: Any) -> Any:
    """Return a context as JSON, ``None`` if the same does not come back from it."""
    kind = type(context)
    try:
        if isinstance(context, msgspec.Struct):
            value = msgspec.to_builtins(context)
        else:
            value = TypeAdapter(kind).dump_python(context, mode="json")
        return value if _decoded(value, kind) == context else None
    except _ERRORS:
        return None


def decoded(value: Any, made: Any) -> Any:
    """Return the context that JSON has, or ``made`` if the JSON has none of its type."""
    try:
        return _decoded(value, type(made))
    except _ERRORS:
        return made


def _decoded(value: Any, kind: type) -> Any:
    if issubclass(kind, msgspec.Struct):
        return msgspec.convert(value, kind)
    return TypeAdapter(kind).validate_python(value)
