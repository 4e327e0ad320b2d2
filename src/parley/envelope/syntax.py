"""The JSON of a message as plain values, bounded and unambiguous."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from parley.model.errors import FieldViolation, InvalidParamsError, InvalidRequestError
from parley.wire.json import protojson
from parley.wire.json.limits import check_limits
from parley.wire.json.syntax import without_bom

MAX_BYTES = 10 * 1024 * 1024
"""The size of a message."""

MAX_DEPTH = 100


def parse(
    data: bytes,
    *,
    max_depth: int = MAX_DEPTH,
    max_bytes: int = MAX_BYTES,
    what: str = "the message",
) -> Any:
    """Return the value that JSON stands for. It stands for one value to every parser.

    Raises ``JSONParseError`` for what is no JSON in UTF-8 (NaN is none), and
    ``InvalidRequestError`` for too many bytes, too many levels, a number that cannot be kept, and
    a member that an object has twice.
    """
    if len(data) > max_bytes:
        raise InvalidRequestError(f"{what} has {len(data):,} bytes; at most {max_bytes:,} are read")
    try:
        check_limits(data, max_depth, max_parts=len(data))
        data = without_bom(data)
        value = protojson.parse(data)
    except InvalidParamsError as error:
        message = error.message.replace("the body", what)
        raise InvalidRequestError(message, violations=error.violations) from None
    # What was read has as many members as the text, unless one stands there twice.
    if _members(data) != _members(protojson.encode(value)):
        _refuse_twice(data)
    return value


def outside_strings(data: bytes) -> bytes:
    """Return JSON without its strings, at the speed of memory."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Without escapes, every other piece between quotation marks is the inside of a string.
    return b"".join(data.split(b'"')[::2])


def _members(data: bytes) -> int:
    """Return the number of members of all objects: their colons."""
    return outside_strings(data).count(b":")


def _refuse_twice(data: bytes) -> None:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    violation = FieldViolation(name[:60], "at most once in one object")
                    raise InvalidRequestError(
                        f"the member {name[:60]!r} stands twice in one object",
                        violations=(violation,),
                    )
                seen.add(name)
        return found

    with suppress(RecursionError):
        json.loads(data, object_pairs_hook=unique)
    raise InvalidRequestError("a member stands twice in one object")
