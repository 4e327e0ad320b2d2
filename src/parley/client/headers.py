"""The headers that a caller gives, beside those that the client sends by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# What the client decides alone, and the option that says it.
_NOT_TAKEN = {
    "a2a-version": "say it with version=",
    "last-event-id": "say it with subscribe(task_id, after=)",
    "content-length": "the client counts the body itself",
    "transfer-encoding": "the client frames the body itself",
    "connection": "the client looks after its connections itself",
    "upgrade": "the client looks after its connections itself",
}
_EXTENSIONS = frozenset({"a2a-extensions", "x-a2a-extensions"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NO_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def taken_apart(headers: Mapping[str, str] | None) -> tuple[dict[str, str], list[str]]:
    """Return a caller's headers without those that name extensions, and the URIs that these name.

    Either version's header is understood, in any case: which one goes out is the interface's
    matter. Raises ``ValueError`` for a header that the client must set itself, or that no request
    can carry, and ``TypeError`` for what is not text.
    """
    others: dict[str, str] = {}
    uris: list[str] = []
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"a header has a name and a value of text, unlike {name!r:.60}")
        lower = name.lower()
        if not _NAME.fullmatch(name) or not _can_be_carried(value):
            raise ValueError(f"no request can carry the header {name!r:.60} with such a value")
        if lower in _NOT_TAKEN:
            raise ValueError(f"the header {name} cannot be given: {_NOT_TAKEN[lower]}")
        if lower in _EXTENSIONS:
            uris += listed(value)
        elif any(lower == other.lower() for other in others):
            raise ValueError(f"the header {name} is given twice")
        else:
            others[name] = value
    return others, list(dict.fromkeys(uris))


def check_secret(what: str, value: str | None) -> None:
    """Raise ``TypeError`` or ``ValueError`` for a secret that no header can carry."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{what} is a text, unlike a {type(value).__name__}")
    if value and not _can_be_carried(value):
        raise ValueError(
            f"no request can carry {what}: it has a control character, such as a line's end"
        )


def _can_be_carried(value: str) -> bool:
    """Whether a value is of characters that headers have: of no half of a surrogate pair either."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return not _NO_VALUE.search(value)


def listed(value: str) -> list[str]:
    """Return the items of a header that is a list, each once."""
    return list(dict.fromkeys(filter(None, (item.strip() for item in value.split(",")))))


def given(headers: Mapping[str, str], name: str) -> str:
    """Return a header's value, whatever the case of its name; empty where there is none."""
    return next((value for each, value in headers.items() if each.lower() == name), "")


def with_ours(headers: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return a caller's headers with ``ours`` in the place of those of the same names."""
    names = {name.lower() for name in ours}
    return {**{name: each for name, each in headers.items() if name.lower() not in names}, **ours}


def joined(*lists: Iterable[str]) -> str:
    """Return a header's value of the items of several lists, each once, in their order."""
    return ", ".join(dict.fromkeys(item for each in lists for item in each if item))
