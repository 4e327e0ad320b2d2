"""Strict JSON: one reading only. What two parsers could read differently is refused."""

from __future__ import annotations

import json
from typing import Any


class AmbiguousJson(ValueError):
    """The text is no JSON, or not all parsers would read the same in it."""


def read_object(text: bytes | str, *, limit: int, what: str) -> dict[str, Any]:
    """Return the members of a JSON object of at most ``limit`` bytes.

    Raises ``AmbiguousJson`` for anything else: members that are there twice, invalid UTF-8, numbers
    that JSON does not have. The error never quotes values.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > limit:
        raise AmbiguousJson(f"{what} has {len(data):,} bytes; at most {limit:,} are read")
    try:
        content = json.loads(
            data.decode(),
            object_pairs_hook=lambda pairs: _unique(pairs, what),
            parse_constant=lambda name: _no_number(name, what),
        )
    except AmbiguousJson:
        raise
    except UnicodeDecodeError as error:
        raise AmbiguousJson(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        words = f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise AmbiguousJson(words) from None
    except RecursionError:
        raise AmbiguousJson(f"{what} is nested too deeply") from None
    except ValueError:
        raise AmbiguousJson(f"{what} has a number that is too long") from None
    if not isinstance(content, dict):
        raise AmbiguousJson(f"{what} is not a JSON object")
    return content


def _unique(pairs: list[tuple[str, Any]], what: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise AmbiguousJson(f"{what} has the member {name[:60]!r} twice in one object")
            seen.add(name)
    return found


def _no_number(name: str, what: str) -> Any:
    raise AmbiguousJson(f"{what} has {name}, which is not JSON")
