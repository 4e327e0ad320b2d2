"""Contexts of workflows as JSON, with the memory that the framework itself leaves out."""

from __future__ import annotations

from typing import Any

import msgspec
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer
from workflows.context import JsonSerializer

MEMORY = '{"__parley_memory__":'


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
        said = msgspec.json.decode(value)["__parley_memory__"]
        messages = [ChatMessage.model_validate(each) for each in said]
        return ChatMemoryBuffer.from_defaults(chat_history=messages, llm=self._llm)
