"""Answers of a type: what the endpoint is asked for, and what a text says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from parley.engine.typed.schema import is_object, object_of
from parley.engine.typed.value_type import ValueType
from parley.engine.typed.violations import Mismatch, Violation

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)

_DECODER = msgspec.json.Decoder()


class OutputType:
    """The type of the answers of a model. Raises ``TypeError`` for a type without a JSON form."""

    def __init__(self, kind: Any) -> None:
        self._type = ValueType(kind)
        self._is_wrapped = not is_object(self._type.schema)
        self.schema = self._type.output_schema
        self.asked: Mapping[str, Any] = (
            object_of({"value": self._type.schema}, ["value"])
            if self._is_wrapped
            else self._type.schema
        )

    @property
    def response_format(self) -> dict[str, Any]:
        """What asks an endpoint for JSON of the schema."""
        return {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": dict(self.asked)},
        }

    @property
    def instructions(self) -> str:
        """What asks a model, for endpoints that ignore ``response_format``."""
        schema = msgspec.json.encode(self.asked).decode()
        return f"Your final answer is JSON alone, without other words, of this schema: {schema}"

    def read(self, text: str) -> Any:
        """Return the value that a text says, also one with words or a fence around the JSON.

        Raises ``Mismatch``.
        """
        mismatch = Mismatch([Violation((), "expected JSON, and nothing else")])
        for candidate in _candidates(text):
            try:
                data = _DECODER.decode(candidate)
            except (msgspec.DecodeError, UnicodeEncodeError):
                continue
            if self._is_wrapped and isinstance(data, dict) and set(data) == {"value"}:
                data = data["value"]
            try:
                return self._type.read(data)
            except Mismatch as error:
                mismatch = error
        raise mismatch

    def dump(self, value: Any) -> Any:
        """Return a value as JSON data."""
        return self._type.dump(value)


def _candidates(text: str) -> list[str]:
    """Return what of a text may be the JSON: all of it, what is fenced, what is in brackets."""
    found = [text.strip(), *(fenced.strip() for fenced in _FENCED.findall(text))]
    for opening, closing in ("{}", "[]"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            found.append(text[start : end + 1])
    return found
