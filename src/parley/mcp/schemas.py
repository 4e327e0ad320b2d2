"""JSON Schemas of skills as MCP has them: objects, in tools and in forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WRAPPED_INPUT = "input"
"""The argument of a skill whose input is no object."""

WRAPPED_RESULT = "result"
"""The member of a result that is no object."""

WRAPPED_ANSWER = "answer"
"""The field of a form whose answer is no object, or a text."""

_PRIMITIVES = frozenset({"string", "number", "integer", "boolean"})
_KEPT = frozenset(
    {
        "type", "title", "description", "minLength", "maxLength", "format", "minimum", "maximum",
        "enum", "enumNames", "oneOf", "default", "items", "minItems", "maxItems", "pattern",
    }
)  # fmt: skip


def object_schema(schema: Mapping[str, Any], wrapped: str) -> tuple[dict[str, Any], bool]:
    """Return the schema as that of an object, and whether the value had to become its member."""
    root = _resolved(schema)
    if root.get("type") == "object":
        return root, False
    definitions = root.pop("$defs", None)
    found: dict[str, Any] = {"type": "object", "properties": {wrapped: root}, "required": [wrapped]}
    if definitions:
        found["$defs"] = definitions
    return found, True


def form_schema(schema: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """Return the form for an answer of this schema, and how its fields are the answer.

    Forms have flat fields: text, numbers, yes or no, choices. ``fields``: they are the answer;
    ``value``: the only field is; ``json``: its text is the answer as JSON; ``text``: as it stands.
    """
    if schema is None:
        return _one_field({"type": "string", "title": "Answer"}), "text"
    root = _resolved(schema)
    properties = root.get("properties")
    if root.get("type") == "object" and isinstance(properties, dict) and properties:
        fields = {name: _field(each, root) for name, each in properties.items()}
        if all(fields.values()):
            required = [name for name in root.get("required", ()) if name in fields]
            return {"type": "object", "properties": fields, "required": required}, "fields"
    elif (field := _field(root, root)) is not None:
        return _one_field(field), "value"
    asked = {"type": "string", "title": "Answer", "description": "JSON that fits the question"}
    return _one_field(asked), "json"


def _one_field(field: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {WRAPPED_ANSWER: dict(field)},
        "required": [WRAPPED_ANSWER],
    }


def _field(schema: Any, root: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a field of a form, ``None`` for what a form has no field for."""
    if not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        schema = _resolved({**schema, "$defs": root.get("$defs", {})})
    kind = schema.get("type")
    choices = schema.get("enum")
    if kind is None and isinstance(choices, list):
        kind = "string" if all(isinstance(each, str) for each in choices) else None
    if kind == "array":
        items = schema.get("items")
        if not (isinstance(items, dict) and ("enum" in items or "anyOf" in items)):
            return None
    elif kind not in _PRIMITIVES:
        return None
    kept = {name: value for name, value in schema.items() if name in _KEPT}
    return {**kept, "type": kind}


def _resolved(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose root is not a reference to one of its definitions."""
    root, definitions = dict(schema), schema.get("$defs")
    for _ in range(8):
        reference = root.get("$ref")
        if not isinstance(reference, str) or not isinstance(definitions, dict):
            break
        named = definitions.get(reference.removeprefix("#/$defs/"))
        if not isinstance(named, dict):
            break
        root = {**named, **{k: v for k, v in root.items() if k not in ("$ref", "$defs")}}
        root["$defs"] = definitions
    return root
