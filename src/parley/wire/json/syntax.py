"""JSON as bytes: reasons of syntax errors, and limits on depth and width."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import TypeVar

import msgspec

from parley.model.errors import FieldViolation, InvalidParamsError, JSONParseError

Bytes = bytes | memoryview | msgspec.Raw


_BOM = b"\xef\xbb\xbf"


def without_bom(data: bytes) -> bytes:
    """Return JSON without the byte order mark that some writers put before it (RFC 8259 §8.1)."""
    return data.removeprefix(_BOM)


def is_null(data: Bytes) -> bool:
    """Return whether JSON is null or missing, which some peers send for an empty list."""
    return len(data) <= 64 and bytes(data).strip() in (b"null", b"")


def not_json(data: Bytes, error: ValueError) -> JSONParseError:
    """Return the error with the reason why ``data`` is not JSON; ``error`` is the parser's."""
    body = bytes(data)
    try:
        body.decode()
    except UnicodeDecodeError as flaw:
        return JSONParseError(f"not UTF-8: {flaw.reason} at byte {flaw.start}")
    if not body.strip():
        return JSONParseError("not JSON: it is empty")
    why = str(error).removeprefix("JSON is malformed: ")
    if why == "Input data was truncated":
        why = "it ends too early"
        if b"\\u" in body:
            why += ", or has half of a surrogate pair"
    return JSONParseError(f"not JSON: {why}")


T = TypeVar("T")

_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


class _Message(msgspec.Struct):
    """A message; the proto of 0.3 calls its parts ``content``."""

    parts: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    """A request, or its JSON-RPC envelope; some callers of 0.3 call its message ``request``."""

    message: msgspec.Raw = msgspec.Raw()
    request: msgspec.Raw = msgspec.Raw()
    params: msgspec.Raw = msgspec.Raw()


_body = msgspec.json.Decoder(_Body).decode
_message = msgspec.json.Decoder(_Message).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def check_limits(body: Bytes, max_depth: int = 100, max_parts: int = 1000) -> None:
    """Reject a body that is nested too deeply, or whose message has too many parts.

    ``body`` is a request, with or without its JSON-RPC envelope; other faults are left to the
    decoder. A body with few arrays and objects takes two passes at the speed of memory; any other
    body a small multiple of that, linear in its size.

    Raises ``InvalidParamsError``.
    """
    body = bytes(body)
    # This is several times as fast as bytes.count.
    objects = len(body) - len(body.replace(b"{", b""))
    arrays = len(body) - len(body.replace(b"[", b""))
    if objects + arrays > max_depth and _depth(body) > max_depth:
        raise InvalidParamsError(f"the body is nested more than {max_depth} levels deep")
    if objects > max_parts and _parts(body) > max_parts:
        violation = FieldViolation("message.parts", f"at most {max_parts} parts are allowed")
        raise InvalidParamsError(
            f"the message has more than {max_parts} parts", violations=(violation,)
        )


def _depth(body: bytes) -> int:
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Without escapes, every other piece between quotation marks is the content of a string.
    outside = b"".join(body.translate(None, _NOT_STRUCTURE).split(b'"')[::2])
    return max(accumulate(array("b", outside.translate(_STEPS))), default=0)


def _parts(body: bytes) -> int:
    """Return the number of parts of the message, wherever in the body that is."""
    outer = _read(_body, body)
    most = 0
    for request in (outer, outer and _read(_body, outer.params)):
        for raw in (request.message, request.request) if request else ():
            message = _read(_message, raw)
            for parts in (message.parts, message.content) if message else ():
                most = max(most, len(_read(_list, parts) or ()))
    return most


def _read(decode: Callable[[Bytes], T], raw: Bytes) -> T | None:
    try:
        return decode(raw)
    except (ValueError, RecursionError):
        return None
