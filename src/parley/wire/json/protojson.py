"""The JSON of the data model, as others may write it (specification §5.5-5.7).

Canonical ProtoJSON is read by msgspec in one step. What is not canonical (original proto names,
enum numbers, nulls, unknown fields, ...) takes a second, slower look in ``wire.lenient``, which
reads what ProtoJSON allows and names the fields that are wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf
from typing import Any, NoReturn, TypeVar

import msgspec

from parley.model import encoding
from parley.model.encoding import encode
from parley.model.errors import A2AError, FieldViolation, InvalidParamsError
from parley.wire.json import readers
from parley.wire.json.limits import check_limits
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
    Unknown fields are passed over. Required fields must be there; one whose empty value means
    something (an empty list of tasks) may be missing, because ProtoJSON writers leave it out.

    Raises ``JSONParseError`` when ``data`` is not JSON in UTF-8, ``InvalidParamsError`` when it
    is not a ``kind``: ``violations`` then name the fields, in wire names.
    """
    try:
        return encoding.decode(data, kind)
    except (ValueError, RecursionError):  # msgspec's errors and Unicode's are ValueErrors
        return read(parse(data), kind)


def read(value: Any, kind: type[T], wrong: Iterable[FieldViolation] = ()) -> T:
    """Return the ``kind`` that a parsed JSON value stands for, as ``decode`` does.

    ``wrong`` is what is known to be wrong with it already: it is told with the rest.
    """
    violations = list(wrong)
    known = {violation.field for violation in violations}
    try:
        made = readers.reader(kind)(value)
    except readers.Wrong as problem:
        violations += [FieldViolation(*each) for each in problem.problems if each[0] not in known]
    if violations:
        refuse(violations)
    return made  # type: ignore[no-any-return]


def decode_answer(data: Bytes, kind: type[T]) -> T:
    """Read a value of an answer, as ``decode`` does, without the fields that are wrong in it.

    They are noted (``wire.forgiveness``). Raises what ``decode`` does for what is no ``kind``.
    """
    try:
        return encoding.decode(data, kind)
    except (ValueError, RecursionError):
        return read_answer(parse_answer(data), kind)


def read_answer(value: Any, kind: type[T]) -> T:
    """Return the ``kind`` that a parsed JSON value stands for, as ``decode_answer`` does."""
    try:
        return readers.reader(kind, forgiving=True)(value)  # type: ignore[no-any-return]
    except readers.Wrong as wrong:
        refuse([FieldViolation(*each) for each in wrong.problems])


def parse_answer(data: Bytes) -> Any:
    """Return what the JSON of an answer says, as ``parse`` does; what JSON lacks is forgiven.

    Halves of surrogate pairs and bytes that are no UTF-8 become U+FFFD, numbers that JSON does not
    have or that cannot be kept become null or text.
    """
    try:
        return parse(data)
    except A2AError:
        try:
            text = _HALF.sub(_whole, bytes(data).decode(errors="replace"))
            return json.loads(
                text,
                parse_constant=lambda _: None,
                parse_float=_finite,
                parse_int=lambda digits: int(digits) if len(digits) <= 4300 else digits,
            )
        except (ValueError, RecursionError):
            pass
        raise


# An escape, a whole surrogate pair among them (1), or half of one (2).
_HALF = re.compile(
    r"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(u[dD][89a-fA-F].{2})|.)",
    re.DOTALL,
)


def _finite(digits: str) -> float | str:
    number = float(digits)
    return digits if number in (inf, -inf) else number


def _whole(found: re.Match[str]) -> str:
    return "\\ufffd" if found[2] else found[0]


def parse(data: Bytes) -> Any:
    """Return what JSON says, as plain Python values.

    Raises ``JSONParseError``, and ``InvalidParamsError`` for a number that cannot be kept.
    """
    try:
        return _parse(data)
    except RecursionError:
        raise InvalidParamsError("nested too deeply") from None
    except msgspec.ValidationError:  # a number is the only thing that can be invalid here
        description = "the number is too large to be kept; send it as a string"
        paths = list(islice(_outsized(data), readers.MAX_PROBLEMS))
        refuse([FieldViolation(path, description) for path in paths or [""]])
    except ValueError as error:
        raise not_json(data, error) from None


def refuse(violations: list[FieldViolation]) -> NoReturn:
    """Raise the ``InvalidParamsError`` that tells what is wrong, the first in its message."""
    field, description = violations[0]
    message = f"{field}: {description}" if field else description
    if len(violations) > 1:
        message += f" (and {len(violations) - 1} more)"
    raise InvalidParamsError(message, violations=tuple(violations)) from None


def _outsized(data: Bytes) -> Iterator[str]:
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
            pending += [(f"{path}[{place}]", item) for place, item in enumerate(value)]
