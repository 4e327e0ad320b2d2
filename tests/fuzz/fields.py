"""The fields of a protobuf message, whatever they mean: enough to take one apart and change it."""

from __future__ import annotations

import random
import struct

Field = tuple[int, int, int | bytes]
"""Number, wire type and value: an integer, or the bytes of what is not one."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLES = (0.0, -0.0, 1.5, -1e300, 2.0**53, float("nan"), float("inf"))
_INTEGERS = (0, 1, 2, 5, 127, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def read(data: bytes) -> list[Field]:
    """Return the fields of a message; none when ``data`` is no message."""
    found: list[Field] = []
    place = 0
    try:
        while place < len(data):
            tag, place = _varint(data, place)
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                value, place = _varint(data, place)
                found.append((number, kind, value))
                continue
            if kind == _BYTES:
                size, place = _varint(data, place)
            else:
                size = {_FIXED64: 8, _FIXED32: 4}[kind]
            if not number or place + size > len(data):
                return []
            found.append((number, kind, data[place : place + size]))
            place += size
    except (IndexError, KeyError):
        return []
    return found


def write(fields: list[Field]) -> bytes:
    """Return the message of some fields."""
    written = bytearray()
    for number, kind, value in fields:
        written += _written(number << 3 | kind)
        if isinstance(value, int):
            written += _written(value)
        else:
            written += _written(len(value)) + value if kind == _BYTES else value
    return bytes(written)


def strange(chance: random.Random) -> tuple[int, int | bytes]:
    """Return a wire type and a value that few fields have."""
    match chance.randrange(3):
        case 0:
            return _VARINT, chance.choice(_INTEGERS)
        case 1:
            return _FIXED64, struct.pack("<d", chance.choice(_DOUBLES))
    return _BYTES, chance.choice([b"", b"x", b"\xff", b"\0", b"YQ==", b"\x08\x01", b"x" * 200])


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128 or shift > 63:
            return value, place


def _written(value: int) -> bytes:
    pieces = bytearray()
    while value > 127:
        pieces.append(value & 127 | 128)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)
