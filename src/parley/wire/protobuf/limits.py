"""Limits on the depth and width of a request, as ``wire.json.limits`` has them for JSON."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import msgspec

from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.struct import A2AStruct

DEEPEST = 60
"""Protobuf accepts no request that is nested deeper than this many arrays and objects.

Messages may be nested 100 deep; an array or an object in a ``Value`` takes two.
"""


def check_parts(parts: Sized, max_parts: int, field: str = "message.parts") -> None:
    """Reject a message with too many parts. Raises ``InvalidParamsError``."""
    if len(parts) > max_parts:
        violation = FieldViolation(field, f"at most {max_parts} parts are taken")
        raise InvalidParamsError(
            f"the message has more than {max_parts} parts", violations=(violation,)
        )


def check_depth(request: A2AStruct, max_depth: int) -> None:
    """Reject a request that is nested too deeply. Raises ``InvalidParamsError``."""
    if max_depth < DEEPEST and _depth(request) > max_depth:
        raise InvalidParamsError(f"the body is nested more than {max_depth} levels deep")


def _depth(value: Any) -> int:
    """Return how deep the arrays and objects in the JSON of a value are nested."""
    deepest = 0
    pending = [(value, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, msgspec.Struct):
            items = [getattr(value, name) for name in value.__struct_fields__]
        elif isinstance(value, dict):
            items = list(value.values())
        elif isinstance(value, list | tuple):
            items = list(value)
        else:
            continue
        if value == ():  # a field that is left out
            continue
        deepest = max(deepest, depth)
        pending += [(item, depth + 1) for item in items]
    return deepest
