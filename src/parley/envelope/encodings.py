"""The encodings of ``parameters``: ``payload.metadata.encoding``."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

from parley.envelope.syntax import parse
from parley.model.errors import A2AError
from parley.wire.json.problems import InvalidValue, expected
from parley.wire.json.protojson import encode

UTF_8 = "utf-8"
GZIP = "gzip+base64"

ENCODINGS = (UTF_8, GZIP)

MOST_RATIO = 20
SMALL = 64 * 1024
"""How much parameters may grow when they are decompressed; and the bytes that they always may."""

_GZIP_ONLY = 31  # window bits of zlib: 15, and 16 for the header of gzip


def read_parameters(value: Any, encoding: str, *, max_depth: int, max_bytes: int) -> Any:
    """Return the parameters that stand in a message in an encoding.

    What they are decompressed to has at most ``max_bytes``, and at most ``MOST_RATIO`` times the
    bytes that came, or ``SMALL``: a short message costs no more than a long one. No more is ever
    held. Raises ``InvalidValue``.
    """
    if encoding != GZIP:
        return value
    if type(value) is not str:
        raise expected("base64 of gzip of JSON, in a string", value)
    try:
        packed = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidValue([("", "expected base64 of gzip of JSON; it is not base64")]) from None
    limit = min(max_bytes, max(SMALL, MOST_RATIO * len(packed)))
    unpacking = zlib.decompressobj(_GZIP_ONLY)
    try:
        data = unpacking.decompress(packed, limit + 1)
    except zlib.error:
        raise InvalidValue([("", "expected base64 of gzip of JSON; it is not gzip")]) from None
    if len(data) > limit:
        words = f"expected at most {limit:,} bytes when decompressed"
        if limit < max_bytes:
            words += f", {MOST_RATIO} times its size: send it without {GZIP}"
        raise InvalidValue([("", words)])
    if not unpacking.eof:
        raise InvalidValue([("", "the gzip data ends too early")])
    if unpacking.unused_data:
        raise InvalidValue([("", "expected one gzip member, and nothing after it")])
    try:
        return parse(data, max_depth=max_depth, max_bytes=max_bytes)
    except A2AError as error:
        raise InvalidValue([("", error.message)]) from None


def write_parameters(value: Any, encoding: str) -> Any:
    """Return how parameters stand in a message in an encoding; equal ones stand equally."""
    if encoding != GZIP:
        return value
    packing = zlib.compressobj(wbits=_GZIP_ONLY)
    return base64.b64encode(packing.compress(encode(value)) + packing.flush()).decode("ascii")
