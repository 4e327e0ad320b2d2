"""Names of tools: what models may call, and no two the same."""

from __future__ import annotations

import re
from collections.abc import Container

LONGEST = 64
"""How long the name of a tool may be."""


def tool_name(text: str) -> str:
    """Return a text as the name of a tool: letters, digits, ``_`` and ``-``, at most 64."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:LONGEST] or "skill"


def free_name(name: str, taken: Container[str]) -> str:
    """Return a name, with a number if it is taken."""
    chosen, number = name, 1
    while chosen in taken:
        number += 1
        chosen = f"{name[: LONGEST - 4]}_{number}"
    return chosen
