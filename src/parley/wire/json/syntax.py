"""JSON as bytes: whether there is any, and why it cannot be parsed."""

from __future__ import annotations

import msgspec

from parley.model.errors import JSONParseError

Bytes = bytes | memoryview | msgspec.Raw


_BOM = b"\xef\xbb\xbf"


def without_bom(data: bytes) -> bytes:
    """Return JSON without the byte order mark that some writers put before it (RFC 8259 §8.1)."""
    return data.removeprefix(_BOM)


def is_null(data: Bytes) -> bool:
    """Return whether JSON is null or missing, which some peers send for an empty list."""
    return len(data) <= 64 and bytes(data).strip() in (b"null", b"")


def not_json(data: Bytes, error: ValueError) -> JSONParseError:
    """Return the error that says why ``data`` could not be parsed; ``error`` is the parser's."""
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
