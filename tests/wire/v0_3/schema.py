"""The JSON schema of version 0.3: the reference for encoded JSON."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator

_FILE = Path(__file__).parents[2] / "data" / "a2a_v0_3_json_schema.json"


@cache
def _validator(name: str) -> Draft7Validator:
    schema = json.loads(_FILE.read_text("utf-8"))
    return Draft7Validator({**schema, "$ref": f"#/definitions/{name}"})


def flaws(name: str, data: bytes) -> list[Any]:
    """Return the schema errors of JSON as a ``name`` of version 0.3."""
    return [error.message for error in _validator(name).iter_errors(json.loads(data))]
