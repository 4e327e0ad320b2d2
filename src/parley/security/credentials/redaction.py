"""Redaction: query parameters that may be credentials do not get into logs."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

HIDDEN = "..."

_CREDENTIAL = re.compile(
    r"key|token|secret|passw|pwd|auth|credential|signature|session|assertion|^(sig|code|state)$"
)

_hidden: set[str] = set()


def hide_parameter(name: str) -> None:
    """Hide the values of a query parameter from now on, whatever case its name is in."""
    _hidden.add(name.lower())


def without_credentials(target: str) -> str:
    """Return a path or URL without the values of query parameters that may be credentials.

    These are the parameters that schemes take keys from, and all whose names sound like one.
    """
    path, mark, query = target.partition("?")
    if not mark:
        return target
    return path + mark + "".join([_hide(part) for part in re.split("([&;#])", query)])


def _hide(pair: str) -> str:
    name, equals, value = pair.partition("=")
    decoded = unquote_plus(name).strip().lower()
    is_hidden = decoded in _hidden or _CREDENTIAL.search(decoded) is not None
    return f"{name}={HIDDEN}" if equals and value and is_hidden else pair
