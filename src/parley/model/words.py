"""Words of messages."""

from __future__ import annotations

import re

_AN = re.compile(r"[aeio]|hour|u(?!ni[^nm]|[rs][a-z]|ui|rl)", re.IGNORECASE)


def an(noun: str) -> str:
    """Return a noun with its indefinite article, by its first sound: an EVENT, a URL, an hour."""
    return f"{'an' if _AN.match(noun) else 'a'} {noun}"
