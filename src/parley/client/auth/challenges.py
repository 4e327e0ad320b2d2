"""Challenges of servers: the values of ``WWW-Authenticate`` (RFC 9110 §11.6.1)."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_LENGTH = 8192
"""The characters of challenges that are read."""

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_ITEM = re.compile(rf'({_TOKEN})(?:[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN})))?')
_ESCAPED = re.compile(r"\\(.)")


class Challenge(NamedTuple):
    """One challenge: its scheme in lower case, and its parameters by their lower-case names."""

    scheme: str
    parameters: dict[str, str]

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that it asks for (RFC 6750 §3)."""
        return tuple(dict.fromkeys(self.parameters.get("scope", "").split()))


def parse_challenges(value: str) -> list[Challenge]:
    """Return the challenges of a header; what is malformed is passed over."""
    found: list[Challenge] = []
    for item in _ITEM.finditer(value[:MAX_LENGTH]):
        name, quoted, plain = item.groups()
        if quoted is None and plain is None:
            found.append(Challenge(name.lower(), {}))
        elif found:
            content = plain if quoted is None else _ESCAPED.sub(r"\1", quoted)
            found[-1].parameters.setdefault(name.lower(), content)
    return found
