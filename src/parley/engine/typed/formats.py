"""Formats that msgspec leaves out of its schemas: those of dates with a time, and of times.

msgspec reads them without a time zone too, which the formats of JSON Schema do not allow. The
schema names them nevertheless: it says what to send, and pages make a field for a time of it.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from datetime import datetime, time
from typing import Any

import msgspec

from parley.engine.typed.annotations import arms, class_of, fields_of, plain
from parley.engine.typed.schema import REF

_FORMATS = {datetime: "date-time", time: "time"}


def add_formats(kind: Any, schema: dict[str, Any], defs: Mapping[str, Any]) -> None:
    """Add the formats of a type to the schema that msgspec made of it, and to ``defs``."""
    _add(kind, schema, defs, set())


def _add(kind: Any, schema: Any, defs: Mapping[str, Any], seen: set[str]) -> None:
    if not isinstance(schema, dict):
        return
    reference = schema.get("$ref", "").removeprefix(REF)
    if reference:
        if reference not in seen:
            seen.add(reference)
            _add(kind, defs.get(reference), defs, seen)
        return
    options, kinds = schema.get("anyOf"), arms(kind)
    if isinstance(options, list):
        texts = [each for each in kinds if class_of(each) in _FORMATS]
        for option in options:
            if option == {"type": "string"} and texts:
                _add(texts[0], option, defs, seen)
        others = [each for each in kinds if each not in texts and each is not type(None)]
        bigger = [option for option in options if option.keys() & {"$ref", "items"}]
        if len(others) == len(bigger) == 1:
            _add(others[0], bigger[0], defs, seen)
        return
    if class_of(kind) in _FORMATS and schema.get("type") == "string":
        schema.setdefault("format", _FORMATS[class_of(kind)])
        return
    arguments = typing.get_args(plain(kind))
    if "properties" in schema:
        hints = fields_of(kind)
        info: Any = msgspec.inspect.type_info(kind) if hints else None
        for field in info.fields if info is not None else ():
            _add(hints[field.name], schema["properties"].get(field.encode_name), defs, seen)
    elif isinstance(schema.get("items"), dict) and arguments:
        _add(arguments[0], schema["items"], defs, seen)
    elif isinstance(schema.get("additionalProperties"), dict) and len(arguments) == 2:
        _add(arguments[1], schema["additionalProperties"], defs, seen)
