"""Structured output of the SDK's agents, as JSON with its schema."""

from __future__ import annotations

from typing import Any

import agents
from agents.agent_output import AgentOutputSchemaBase
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError


def is_text(thing: agents.Agent[Any]) -> bool:
    """Return whether an agent's output is plain text."""
    kind = thing.output_type
    if isinstance(kind, AgentOutputSchemaBase):
        return bool(kind.is_plain_text())
    return kind is None or kind is str


def schema_of(thing: agents.Agent[Any]) -> dict[str, Any] | None:
    """Return the JSON Schema of an agent's output, ``None`` for text and for types without one."""
    if is_text(thing):
        return None
    kind = thing.output_type
    try:
        if isinstance(kind, agents.AgentOutputSchema):
            kind = kind.output_type
        elif isinstance(kind, AgentOutputSchemaBase):
            return dict(kind.json_schema())
        return TypeAdapter(kind).json_schema()
    except PydanticUserError:
        return None


def json_of(value: Any) -> Any:
    """Return an output as a JSON value."""
    return TypeAdapter(Any).dump_python(value, mode="json", fallback=str)
