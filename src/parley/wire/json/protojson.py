"""The JSON of the data model, as peers may write it (specification §5.5-5.7).

msgspec reads canonical ProtoJSON in one step. Anything else (original proto names, enum numbers,
nulls, unknown fields, ...) goes to the slower ``readers``, which name the wrong fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf
from typing import Any, NoReturn, TypeVar

import msgspec

from parley.model import struct
from parley.model.errors import A2AError, FieldViolation, InvalidParamsError
from parley.model.struct import encode
from parley.wire.json import readers
from parley.wire.json.limits import check_limits
from parley.wire.json.problems import MAX_PROBLEMS, InvalidValue
from parley.wire.json.syntax import Bytes, not_json

__all__ = [
    "check_limits",
    "decode",
    "decode_answer",
    "encode",
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

    Numbers in data and metadata stay what they are: integers of any size integers, floats floats.
    Unknown fields are ignored. Required fields must be there; one whose empty value means
    something (an empty list of tasks) may be missing, because ProtoJSON writers leave it out.

    Raises ``JSONParseError`` when ``data`` is not JSON in UTF-8, ``InvalidParamsError`` when it
    is not a ``kind``: ``violations`` then name the fields, in wire names.
    """
    try:
        return struct.decode(data, kind)
    except (ValueError, RecursionError):  # msgspec's errors and Unicode's are ValueErrors
        return read(parse(data), kind)


def read(value: Any, kind: type[T], wrong: Iterable[FieldViolation] = ()) -> T:
    """Return the ``kind`` that a parsed JSON value stands for, as ``decode`` does.

    ``wrong`` is what is already known to be wrong with it; the error names that too.
    """
    violations = list(wrong)
    known = {violation.field for violation in violations}
    try:
        made = readers.reader(kind)(value)
    except InvalidValue as problem:
        violations += [each for each in problem.violations if each.field not in known]
    if violations:
        refuse(violations)
    return made  # type: ignore[no-any-return]


def decode_answer(data: Bytes, kind: type[T]) -> T:
    """Read a value of an answer tolerantly: wrong fields are left out and reported.

    Raises what ``decode`` does for what is no ``kind``.
    """
    try:
        return struct.decode(data, kind)
    except (ValueError, RecursionError):
        return read_answer(parse_answer(data), kind)


def read_answer(value: Any, kind: type[T]) -> T:
    """Return the ``kind`` that a parsed JSON value stands for, as ``decode_answer`` does."""
    try:
        return readers.reader(kind, tolerant=True)(value)  # type: ignore[no-any-return]
    except InvalidValue as wrong:
        refuse(wrong.violations)


def parse_answer(data: Bytes) -> Any:
    """Parse the JSON of an answer, tolerating what is no JSON.

    Halves of surrogate pairs and bytes that are not UTF-8 become U+FFFD; numbers that JSON does not
    have or that cannot be kept become null or text.
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


# An escape: a whole surrogate pair (1), half of one (2), or another.
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

    Raises ``JSONParseError``, and ``InvalidParamsError`` for a number that cannot be kept.
    """
    try:
        return _parse(data)
    except RecursionError:
        raise InvalidParamsError("nested too deeply") from None
    except msgspec.ValidationError:  # a number is the only thing that can be invalid here
        description = "the number is too large to be kept; send it as a string"
        paths = list(islice(_oversized_numbers(data), MAX_PROBLEMS))
        refuse([FieldViolation(path, description) for path in paths or [""]])
    except ValueError as error:
        raise not_json(data, error) from None


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
