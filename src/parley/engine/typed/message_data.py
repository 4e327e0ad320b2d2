"""The JSON data of a message: its first data part, else its text where that is a JSON object."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from parley.engine.typed.mismatch import Mismatch
from parley.engine.typed.value_type import ValueType
from parley.model.parts import Message


def data_of(message: Message) -> Any:
    """Return the value of the first data part, else the JSON object in the text, else ``UNSET``."""
    for part in message.parts:
        if part.has_data:
            return part.data
    return object_in(message.text)


def object_in(text: str) -> Any:
    """Return the JSON object that a text is, ``UNSET`` if it is none."""
    found = json_in(text) if text.lstrip().startswith("{") else UNSET
    return found if isinstance(found, dict) else UNSET


def json_in(text: str) -> Any:
    """Return the JSON value that a text is, ``UNSET`` if it is none."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return UNSET


def read_text(kind: ValueType, text: str) -> Any:
    """Return a text as a value: the text itself, else what it is as JSON. Raises ``Mismatch``."""
    try:
        return kind.read(text)
    except Mismatch:
        data = json_in(text)
        if data is UNSET:
            raise
    return kind.read(data)


def read_answer(kind: ValueType, message: Message) -> Any:
    """Return the value in the answer to a question. Raises ``Mismatch``.

    A text that is no JSON object is read as text, which is how people answer.
    """
    data = data_of(message)
    return read_text(kind, message.text.strip()) if data is UNSET else kind.read(data)
