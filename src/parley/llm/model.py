"""A language model: what it is asked, and what it says piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from parley.llm.model_usage import ModelUsage


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a model, in the shapes of the chat completions API.

    ``messages`` are objects with ``role`` and ``content``, ``tools`` objects with ``type`` and
    ``function``. ``response_format`` asks for JSON of a schema. ``max_tokens`` bounds the reply.
    """

    model: str = ""
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    response_format: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    temperature: float | None = None

    @property
    def said(self) -> str:
        """The text of the newest message of the user that has any.

        Some frameworks send each part as a message of its own.
        """
        for message in reversed(self.messages):
            if message.get("role") == "user" and (text := text_of(message)):
                return text
        return ""

    @property
    def tool_results(self) -> list[str]:
        """The results of tools since what the user ``said``, in order."""
        found: list[str] = []
        for message in reversed(self.messages):
            if message.get("role") == "user" and text_of(message):
                break
            if message.get("role") == "tool":
                found.append(text_of(message))
        return found[::-1]


class ModelToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model calls. ``arguments`` is JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str = "{}"


class ModelChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a reply: of its text, of the model's thinking, of a refusal, or whole tool calls.

    The last one may have the ``usage`` of the request, and has the ``finish_reason``: without one
    the reply broke off.
    """

    text: str = ""
    thinking: str = ""
    refusal: str = ""
    tool_calls: tuple[ModelToolCall, ...] = ()
    usage: ModelUsage | None = None
    finish_reason: str = ""


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply, as a task's log keeps it: with thinking only if the model wants it back.

    ``id`` tells it from all others: a reply that the log has is counted once.
    """

    id: str = ""
    text: str = ""
    thinking: str = ""
    refusal: str = ""
    tool_calls: tuple[ModelToolCall, ...] = ()
    usage: ModelUsage = ModelUsage()
    finish_reason: str = ""


class Model(Protocol):
    """A language model."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Ask, and yield the reply piece by piece. Raises ``ModelFailed``."""
        ...


class ModelFailed(Exception):
    """A model could not be asked, or did not answer. ``status`` is that of HTTP, 0 without one.

    ``metadata`` says what the run has used until then.
    """

    def __init__(self, message: str, *, status: int = 0) -> None:
        self.status = status
        self.metadata: dict[str, Any] = {}
        super().__init__(message)


class ReplyBroken(ModelFailed):
    """A reply broke off after it had begun, or ended without a finish reason."""


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content is text or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
