"""The canonical form of messages: RFC 8785, at the speed of msgspec where that writes the same.

Both write the same for JSON without fractions, exponents, large integers, and characters beyond the
Basic Multilingual Plane, which RFC 8785 sorts in another way.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from parley.envelope.syntax import outside_strings
from parley.security.signing.canonical import NotCanonical, canonical

MOST_VALUES = 100_000
"""How many values a message may have whose canonical form takes time: anybody can send one."""

_SUPPLEMENTARY = re.compile(rb"[\xf0-\xf4]")
_LARGE = re.compile(rb"[0-9]{16}")
_fast = msgspec.json.Encoder(order="sorted").encode


def canonical_form(value: Any) -> bytes:
    """Return a JSON value as RFC 8785 writes it. Raises ``NotCanonical``."""
    try:
        data = _fast(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotCanonical(f"has no canonical form: {error}") from None
    outside = outside_strings(data)
    # NaN is written as null: RFC 8785 refuses it.
    words = outside.replace(b"true", b"").replace(b"false", b"")
    if (
        b"." not in words
        and b"e" not in words
        and b"null" not in words
        and (data.isascii() or _SUPPLEMENTARY.search(data) is None)
        and _LARGE.search(words) is None
    ):
        return data
    if words.count(b",") + words.count(b":") > MOST_VALUES:
        raise NotCanonical(
            f"has too many values to be signed: with fractions, null or rare characters among "
            f"them, at most {MOST_VALUES:,}"
        )
    return canonical(value)
