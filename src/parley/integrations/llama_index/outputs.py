"""Results of workflows and engines as text or data."""

from __future__ import annotations

from typing import Any

from llama_index.core.agent.workflow import AgentOutput
from llama_index.core.llms import ChatMessage
from llama_index.core.workflow import StopEvent, Workflow
from pydantic import BaseModel, TypeAdapter

MAX_SOURCES = 20
MAX_SOURCE_TEXT = 1000


def result_of(result: Any) -> tuple[str, Any, dict[str, Any] | None]:
    """Return the text of a result, its data (``None`` without), and the schema of the data."""
    if isinstance(result, AgentOutput):
        return result.response.content or "", result.structured_response, None
    if result is None:
        return "", None, None
    if isinstance(result, str):
        return result, None, None
    if isinstance(result, ChatMessage):
        return result.content or "", None, None
    if isinstance(getattr(result, "source_nodes", None), list):
        return str(result), None, None
    if isinstance(result, BaseModel):
        schema = None if type(result) is StopEvent else type(result).model_json_schema()
        return "", result.model_dump(mode="json"), schema
    if isinstance(result, dict | list | int | float | bool):
        return "", TypeAdapter(Any).dump_python(result, mode="json", fallback=str), None
    return str(result), None, None


def stop_schema(workflow: Workflow) -> dict[str, Any] | None:
    """Return the JSON Schema of a workflow's own stop event, ``None`` without one."""
    kind = workflow.stop_event_class
    return kind.model_json_schema() if kind is not StopEvent and kind.model_fields else None


def sources_of(response: Any) -> list[dict[str, Any]]:
    """Return the passages that an answer rests on: text, score and file name."""
    found = []
    for each in (getattr(response, "source_nodes", None) or [])[:MAX_SOURCES]:
        source: dict[str, Any] = {"text": each.node.get_content()[:MAX_SOURCE_TEXT]}
        if each.score is not None:
            source["score"] = float(each.score)
        if name := each.node.metadata.get("file_name"):
            source["file"] = str(name)
        found.append(source)
    return found
