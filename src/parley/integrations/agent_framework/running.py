"""What agents and workflows need alike: errors, values, schemas."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import msgspec
from agent_framework.exceptions import AgentFrameworkException

from parley.agent.turn import Turn
from parley.engine.turn.attempt import Failed

R = TypeVar("R")


async def guarded(turn: Turn, running: Awaitable[R]) -> R:
    """Await a run. An error of the framework becomes one that the caller may see."""
    try:
        return await running
    except AgentFrameworkException as error:
        turn.log.exception("the run failed")
        raise Failed(f"The agent could not finish: {_kind(error)}.") from error


def _kind(error: BaseException) -> str:
    """Return what kind of error it is, without the words of the services behind it."""
    names = [each.__name__ for each in type(error).__mro__]
    if any("ContentFilter" in each for each in names):
        return "the content filter of its model refused this"
    if any("Auth" in each for each in names):
        return "its model did not accept its credentials"
    if any("ChatClient" in each or "Service" in each for each in names):
        return "its model did not answer"
    return "an error of the framework"


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
