"""What agents and workflows need alike: values and schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def schema_of(response_format: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of a response format: a pydantic model, or an object with one."""
    if hasattr(response_format, "model_json_schema"):
        schema: dict[str, Any] = response_format.model_json_schema()
        return schema
    if not isinstance(response_format, Mapping):
        return None
    inner = response_format.get("json_schema", response_format)
    return dict(inner.get("schema", inner)) if isinstance(inner, Mapping) else None


def plain(value: Any) -> Any:
    """Return a value of the framework as JSON."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return msgspec.to_builtins(value)
