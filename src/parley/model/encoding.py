"""The JSON that Parley writes, and reads back from its own log: canonical ProtoJSON.

``wire.json`` reads what peers write.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from parley.model.errors import an
from parley.model.struct import Timestamp

T = TypeVar("T")


def to_wire(value: Any) -> Any:
    """Return the JSON form of a value that msgspec does not know by itself."""
    if isinstance(value, Timestamp):
        return str(value)
    raise TypeError(f"{an(type(value).__name__)} cannot be written as JSON")


def from_wire(kind: type, value: Any) -> Any:
    """Return the value of type ``kind`` whose JSON form is ``value``."""
    if kind is Timestamp:
        if not isinstance(value, str):
            raise ValueError("expected a timestamp such as 2026-01-31T12:00:00.000Z")
        return Timestamp.parse(value)
    raise TypeError(f"{an(kind.__name__)} cannot be read from JSON")


encode = msgspec.json.Encoder(enc_hook=to_wire).encode
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(data: bytes | memoryview | msgspec.Raw, kind: type[T]) -> T:
    """Read a value that ``encode`` wrote. Raises ``msgspec.DecodeError`` for anything else."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind, dec_hook=from_wire)
    return decoder.decode(data)  # type: ignore[no-any-return]


def valid_text(value: Any) -> Any:
    """Return a value whose text is Unicode: half of a surrogate pair becomes U+FFFD."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)  # of a part without data too, which getattr hides
        return msgspec.structs.replace(
            value, **{name: valid_text(item) for name, item in fields.items()}
        )
    if isinstance(value, dict):
        return {valid_text(key): valid_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [valid_text(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value
