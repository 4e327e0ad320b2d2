"""Values of fields as they are compared: without regard to case, as numbers, as times."""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from parley.registry.records import AgentHealth, Liveness

MAX_FIELD = 200
MAX_VALUE = 1_000
MAX_VALUES = 2_000
"""How many values of an entry are indexed, each within so many characters."""

HEALTH_FIELD = "observed.health"
LIVENESS_FIELD = "observed.liveness"
"""The fields of what was observed of an agent; nothing that is put changes their values."""

_NUMBER = re.compile(r"[+-]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][+-]?\d{1,3})?")
_NUL = "\x00"


class Term(msgspec.Struct, frozen=True, rename={"id": "term_id"}):
    """A value of a field path, as it is indexed."""

    id: int
    field: str
    value: str
    normalized: str
    number: float | None
    instant: int | None


def clean(text: str) -> str:
    """Return a text that every database can hold: without NUL and halves of surrogate pairs."""
    if text.isascii():
        return text.replace(_NUL, "\ufffd") if _NUL in text else text
    return text.encode("utf-8", "replace").decode().replace(_NUL, "\ufffd")


def cleaned(value: Any) -> Any:
    """Return JSON values with texts that every database can hold."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(name): cleaned(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value


def normalized(value: str) -> str:
    """Return a value as it is compared: case, width and spaces make no difference."""
    value = clean(value[:MAX_VALUE])
    if not value.isascii():
        value = unicodedata.normalize("NFKC", value)
    return " ".join(value.casefold().split())


def term_id(field: str, normal: str) -> int:
    """Return the id of a normalized value of a field path."""
    digest = blake2b(f"{field}\n{normal}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@lru_cache(maxsize=1 << 14)
def term(field: str, value: str) -> Term:
    """Return a value of a field path as it is indexed."""
    field = clean(field[:MAX_FIELD])
    normal = normalized(value)
    number = number_in(normal)
    return Term(
        term_id(field, normal),
        field,
        clean(value[:MAX_VALUE]),
        normal,
        number,
        instant_in(normal) if number is None else None,
    )


def number_in(text: str) -> float | None:
    """Return the number that a text is."""
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def instant_in(text: str) -> int | None:
    """Return the time that a text is (ISO 8601, UTC unless it says otherwise), in ms since 1970."""
    if not text[:4].isdigit() or len(text) > 40 or len(text) < 8:
        return None
    try:
        time = datetime.fromisoformat(text.upper())
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return round(time.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


OBSERVED_TERMS = frozenset(
    [
        *[term_id(HEALTH_FIELD, each.value) for each in AgentHealth],
        *[term_id(LIVENESS_FIELD, each.value) for each in Liveness],
    ]
)
"""The ids of all values of the fields of what was observed."""
