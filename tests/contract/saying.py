"""Values to send, and the parts of them that each version can carry."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from parley import Part
from tests.contract.conftest import Speech

T = TypeVar("T")

PARTS = (
    Part(text="these"),
    Part(text="*words*", media_type="text/markdown", metadata={"of": "a part"}),
    Part(raw=b"\x00bytes\xff", filename="b.bin", media_type="application/octet-stream"),
    Part(url="https://example.com/u.png", filename="u.png", media_type="image/png"),
    Part(data={"count": 3, "list": [1, 2.5, None, "x"]}, metadata={"k": "v"}),
    Part(data=["no", "object", 1]),
    Part(data="a string"),
    Part(data=None),
)


def as_told(speech: Speech, value: T) -> T:
    """Return a value as it arrives: 0.3 carries no name and no media type for text and data."""
    return _without(value) if speech.is_old else value


def _without(value: Any) -> Any:
    if isinstance(value, Part):
        is_file = value.text is None and not value.has_data
        return value if is_file else msgspec.structs.replace(value, filename="", media_type="")
    if isinstance(value, tuple):
        return tuple(map(_without, value))
    if isinstance(value, msgspec.Struct) and hasattr(type(value), "__struct_fields__"):
        fields = {name: _without(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    return value
