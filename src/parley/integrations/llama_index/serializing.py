"""Contexts of workflows as JSON, with the memory that the framework itself leaves out."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer
from workflows.context import JsonSerializer

from parley.integrations.conversations import replaced

MEMBER = "__parley_memory__"
MEMORY = f'{{"{MEMBER}":'

FILES = {"image": "(an image)", "audio": "(an audio recording)", "document": "(a document)"}


class Kept(NamedTuple):
    """What is kept of a context: the messages of the agent's memory, and the rest of its store."""

    messages: list[Any]
    state: dict[str, Any]


def parts_of(context: dict[str, Any]) -> Kept:
    """Return what is kept of a context, which is given as JSON."""
    state = dict(context["state"])
    data = state.get("state_data")
    if isinstance(data, str):  # of a class of the author's
        return Kept([], {**state, "state_data": json.loads(data)})
    values = {name: json.loads(value) for name, value in (data or {}).get("_data", {}).items()}
    messages: list[Any] = []
    if isinstance(memory := values.get("memory"), dict) and MEMBER in memory:
        messages = values.pop("memory")[MEMBER]
    return Kept(messages, {**state, "state_data": {"_data": values}})


def written_state(kept: Kept, new: dict[str, Any]) -> dict[str, Any]:
    """Return the store of a context as the framework reads it; ``new`` is that of a new context."""
    state = {**new, **kept.state}
    data = state["state_data"]
    if not isinstance(data, dict) or set(data) != {"_data"}:
        return {**state, "state_data": json.dumps(data)}
    values = {name: json.dumps(value) for name, value in data["_data"].items()}
    if kept.messages:
        values["memory"] = json.dumps({MEMBER: kept.messages}, separators=(",", ":"))
    return {**state, "state_data": {"_data": values}}


def without_files(messages: list[Any]) -> list[Any]:
    """Return messages in which files are words that say what was there."""

    def words(block: dict[str, Any]) -> Any | None:
        text = FILES.get(str(block.get("block_type")))
        return None if text is None else {"block_type": "text", "text": text}

    found: list[Any] = replaced(messages, words)
    return found


class ContextSerializer(JsonSerializer):  # type: ignore[misc]
    """Writes the memory of an agent as its messages, all else as the framework does.

    ``memory`` is that of the author, which keeps its messages by itself; without it they are read
    into a buffer within the limits of ``llm``.
    """

    def __init__(self, llm: Any, memory: BaseMemory | None) -> None:
        super().__init__()
        self._llm = llm
        self._memory = memory

    def serialize(self, value: Any) -> str:
        """Return a value as JSON text. Raises ``ValueError`` for one that has no JSON form."""
        if not isinstance(value, BaseMemory):
            return str(super().serialize(value))
        kept = self._memory is not None
        messages = [] if kept else [each.model_dump(mode="json") for each in value.get_all()]
        return f"{MEMORY}{msgspec.json.encode(messages).decode()}}}"

    def deserialize(self, value: str) -> Any:
        """Return the value of JSON text."""
        if not (isinstance(value, str) and value.startswith(MEMORY)):
            return super().deserialize(value)
        if self._memory is not None:
            return self._memory
        said = msgspec.json.decode(value)[MEMBER]
        messages = [ChatMessage.model_validate(each) for each in said]
        return ChatMemoryBuffer.from_defaults(chat_history=messages, llm=self._llm)
