"""Inputs made of inputs: bytes changed here and there, members of JSON, fields of protobuf.

Where an input is JSON or protobuf it is mostly changed as such: a random byte would only make it
neither. It may have a line before that, which says what is asked.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz import fields

MAX_DETAILS_BYTES = 16_384

_STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 1.5, -0.0, 1e-7, 1e308, 2**31 - 1, 2**31, 2**53 + 1, 2**64,
    -(2**63), 10**40, "", "x", "\0", "é", "\U0001f600", "\u2028", " ", "1", "1.0", "true", "null",
    "YQ", "YQ==", "QUJDRA==", "!", "..", "a/b", "%2e", "tasks/t/pushNotificationConfigs/p",
    "2026-01-31T12:00:00.000Z", "2026-01-31T12:00:00", "9999-12-31T23:59:59.999-14:00",
    "0001-01-01T00:00:00+14:00", "x" * 300, [], {}, [[]], [None], [{}], {"": None}, {"a": [1]},
    {"value": 1}, {"data_part_compat": True}, "data_part_compat",
)  # fmt: skip
_TOKENS = (
    b"", b"\0", b"\n", b"\r\n", b"\r", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xef\xbb\xbf",
    b'"', b"\\", b"\\ud800", b"\\u0000", b"{", b"}", b"[", b"]", b",", b":", b"1e400", b"-0",
    b"NaN",
    b"9" * 400, b"9" * 5000, b"[" * 200, b'{"a":' * 120, b"null", b"true", b"%2F", b"%00", b"%",
    b"//", b"?", b"&", b"=", b"+", b";", b" ",
)  # fmt: skip

Random = random.Random


class Mutator:
    """Makes further inputs.

    ``form`` is ``text``, ``json``, or one of ``line and json`` and ``line and protobuf``; ``words``
    are what inputs are made of.
    """

    def __init__(self, chance: Random, form: str, words: Sequence[bytes]) -> None:
        self._chance = chance
        self._form = form
        self._has_line = form.startswith("line")
        self._words = [*words]
        self._names = [word.decode() for word in words if word.isascii()]

    def mutated(self, data: bytes, others: Sequence[bytes]) -> bytes:
        """Return an input that is like ``data``, and may borrow from ``others``."""
        chance = self._chance
        for _ in range(1 + int(chance.expovariate(0.7))):
            line, end, body = data.partition(b"\n") if self._has_line else (b"", b"", data)
            if chance.random() < 0.08 or len(end) < self._has_line:
                data = self._bytes(data, others)
            elif end and chance.random() < 0.1:
                data = self._bytes(line, others) + end + body
            else:
                bodies = [self._body_of(other) for other in _two(chance, others)]
                data = line + end + self._body(body, bodies)
        return data[:MAX_DETAILS_BYTES]

    def _body_of(self, data: bytes) -> bytes:
        return data.partition(b"\n")[2] if self._has_line else data

    def _body(self, body: bytes, others: Sequence[bytes]) -> bytes:
        if self._form == "text" or self._chance.random() < 0.15:
            return self._bytes(body, others)
        change = self._protobuf if self._form.endswith("protobuf") else self._json
        return change(body, others)

    # -- bytes ---------------------------------------------------------------------------------

    def _bytes(self, data: bytes, others: Sequence[bytes]) -> bytes:
        chance = self._chance
        start = chance.randint(0, len(data))
        end = min(len(data), start + int(chance.expovariate(0.2)))
        match chance.randrange(8):
            case 0 if data:
                place = chance.randrange(len(data))
                flipped = bytes([data[place] ^ 1 << chance.randrange(8)])
                return data[:place] + flipped + data[place + 1 :]
            case 1:
                return data[:start] + data[end:]
            case 2:
                return data[:start]
            case 3:
                return data[:end] + data[start:end] * chance.randint(1, 20) + data[end:]
            case 4 if others:
                other = chance.choice(others)
                return data[:start] + other[chance.randint(0, len(other)) :]
            case 5 if self._words:
                return data[:start] + chance.choice(self._words) + data[end:]
            case 6:
                return data[:start] + chance.choice(_TOKENS) + data[end:]
        return data[:start] + bytes([chance.randrange(256)]) + data[start + 1 :]

    # -- JSON ----------------------------------------------------------------------------------

    def _json(self, body: bytes, others: Sequence[bytes]) -> bytes:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return self._bytes(body, others)
        chance = self._chance
        root: list[Any] = [value]
        holder: Any = root
        key: Any = 0
        while isinstance(holder[key], dict | list) and holder[key] and chance.random() < 0.85:
            holder = holder[key]
            keys = [*holder] if isinstance(holder, dict) else range(len(holder))
            key = chance.choice(keys)
        self._change(holder, key, others)
        try:
            text = json.dumps(root[0], ensure_ascii=chance.random() < 0.5)
        except (ValueError, RecursionError):
            return body
        return text.encode("utf-8", "surrogatepass")

    def _change(self, holder: Any, key: Any, others: Sequence[bytes]) -> None:
        chance = self._chance
        match chance.randrange(9):
            case 0:
                holder[key] = chance.choice(_STRANGE)
            case 1 if others:
                holder[key] = self._borrowed(others)
            case 2:
                del holder[key]
                if isinstance(holder, list) and not holder:
                    holder.append(None)
            case 3 if isinstance(holder, list):
                holder[key:key] = [holder[key]] * chance.choice([1, 2, 30])
            case 3:
                holder[_other_spelling(key)] = holder.pop(key)
            case 4 if isinstance(holder, dict) and self._names:
                holder[chance.choice(self._names)] = holder[key]
            case 5 if isinstance(holder, dict) and self._names:
                holder[chance.choice(self._names)] = chance.choice(_STRANGE)
            case 6:
                for _ in range(chance.choice([1, 1, 2, 5, 60, 130])):
                    holder[key] = [holder[key]] if chance.random() < 0.5 else {"a": holder[key]}
            case 7 if isinstance(holder[key], str):
                text = holder[key].encode("utf-8", "surrogatepass")
                holder[key] = self._bytes(text, others).decode("utf-8", "replace")
            case 7 if isinstance(holder[key], int | float):
                holder[key] = chance.choice([str(holder[key]), holder[key] * 2**20, -holder[key]])
            case _:
                holder[key] = chance.choice(self._names or ["x"])

    def _borrowed(self, others: Sequence[bytes]) -> Any:
        """Return some value out of another input."""
        try:
            value = json.loads(self._chance.choice(others))
        except (ValueError, RecursionError):
            return None
        while isinstance(value, dict | list) and value and self._chance.random() < 0.8:
            value = self._chance.choice([*(value.values() if isinstance(value, dict) else value)])
        return value

    # -- protobuf ------------------------------------------------------------------------------

    def _protobuf(self, body: bytes, others: Sequence[bytes]) -> bytes:
        found = fields.read(body)
        if not found:
            return self._bytes(body, others)
        chance = self._chance
        place = chance.randrange(len(found))
        number, kind, value = found[place]
        if isinstance(value, bytes) and chance.random() < 0.7:
            within: Callable[[bytes, Sequence[bytes]], bytes]
            within = self._protobuf if fields.read(value) else self._bytes
            found[place] = (number, kind, within(value, others))
            return fields.write(found)
        match chance.randrange(7):
            case 0:
                del found[place]
            case 1:
                found[place:place] = [found[place]] * chance.choice([1, 2, 30])
            case 2:
                found[place] = (chance.randint(1, 20), kind, value)
            case 3:
                found[place] = (number, *fields.strange(chance))
            case 4 if others:
                found[place:place] = fields.read(chance.choice(others))[:5]
            case 5 if isinstance(value, bytes):
                for _ in range(chance.choice([1, 2, 40, 110])):
                    value = fields.write([(chance.choice([number, 1, 5, 6]), 2, value)])
                found[place] = (number, kind, value)
            case _:
                found.insert(place, (chance.randint(1, 20), *fields.strange(chance)))
        return fields.write(found)


def _two(chance: Random, others: Sequence[bytes]) -> list[bytes]:
    return [chance.choice(others) for _ in range(2)] if others else []


def _other_spelling(name: str) -> str:
    """Return a member's name in the other of the two spellings of ProtoJSON."""
    if "_" in name:
        return re.sub(r"_(\w)", lambda match: match[1].upper(), name)
    return re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name)
