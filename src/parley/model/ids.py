"""Limits on ids of tasks, contexts, messages, tenants and callers.

The specification has none, but every store does. Within these, all stores keep the same ids, and
several of them fit into one key.
"""

from __future__ import annotations

import re

LONGEST_ID = 512
"""In bytes of UTF-8."""

RIGHT_ID = f"at most {LONGEST_ID} bytes in UTF-8, and no character U+0000 in it"

RIGHT_NAME = (
    f"at most {LONGEST_ID} bytes in UTF-8, and no control character in it "
    "(U+0000 to U+001F, U+007F)"
)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def may_be_id(text: str) -> bool:
    """Return whether a text can be an id. Nothing has an id that cannot be one."""
    if len(text) > LONGEST_ID or "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        return len(text.encode()) <= LONGEST_ID
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def may_be_name(text: str) -> bool:
    """Return whether a text can be the id or the issuer of a caller."""
    return may_be_id(text) and (text.isprintable() or _CONTROL.search(text) is None)
