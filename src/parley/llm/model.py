"""Language models: requests, replies in pieces, usage, and a model that follows a script."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from parley.extensions.usage import Spent

Json = dict[str, Any]
"""A JSON object."""


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, and their price if it is known, in the unit of ``Spent.cost``."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    requests: int = 0

    def __add__(self, other: ModelUsage) -> ModelUsage:
        return self._with(other, 1)

    def __sub__(self, other: ModelUsage) -> ModelUsage:
        return self._with(other, -1)

    def _with(self, other: ModelUsage, times: int) -> ModelUsage:
        return ModelUsage(
            input_tokens=self.input_tokens + times * other.input_tokens,
            output_tokens=self.output_tokens + times * other.output_tokens,
            cost=self.cost + times * other.cost,
            requests=self.requests + times * other.requests,
        )

    @property
    def tokens(self) -> int:
        """The tokens of requests and replies."""
        return self.input_tokens + self.output_tokens

    @property
    def spent(self) -> Spent:
        """The usage in the form that answers show."""
        return Spent(tokens=self.tokens, cost=self.cost)


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
        """The text of the newest user message with text.

        Some frameworks send each part as a separate message.
        """
        for message in reversed(self.messages):
            if message.get("role") == "user" and (text := text_of(message)):
                return text
        return ""

    @property
    def tool_results(self) -> list[str]:
        """The results of tools since the newest user message, in order."""
        found: list[str] = []
        for message in reversed(self.messages):
            if message.get("role") == "user" and text_of(message):
                break
            if message.get("role") == "tool":
                found.append(text_of(message))
        return found[::-1]


class ModelToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call by the model. ``arguments`` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str = "{}"


class ModelChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a reply: of its text, of the model's thinking, of a refusal, or complete tool
    calls.

    The last piece has the ``finish_reason``, and may have the ``usage`` of the request and the name
    of the ``model`` that replied: a reply without a finish reason was interrupted.
    """

    text: str = ""
    thinking: str = ""
    refusal: str = ""
    tool_calls: tuple[ModelToolCall, ...] = ()
    usage: ModelUsage | None = None
    finish_reason: str = ""
    model: str = ""


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """A complete reply, in the form of a task's log: with thinking only if the model needs it
    returned.

    ``id`` is unique: a reply that is already in the log is not counted again.
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
        """Send a request, and yield the reply piece by piece. Raises ``ModelFailed``."""
        ...


class ModelFailed(Exception):
    """A model could not be reached, or did not answer. ``status`` is the HTTP status, or 0.

    ``metadata`` has the usage of the run until then.
    """

    def __init__(self, message: str, *, status: int = 0) -> None:
        self.status = status
        self.metadata: Json = {}
        super().__init__(message)


class ReplyBroken(ModelFailed):
    """A reply was interrupted, or ended without a finish reason."""


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content is text or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


class ScriptedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A scripted reply: text, tool calls (name and arguments), or an HTTP error.

    ``refusal`` is the text of a refusal. ``finish_reason`` is how the reply ends, by default
    ``tool_calls`` or ``stop``; with ``is_cut`` it is interrupted after the text. ``pause`` is the
    delay before each piece in seconds, ``hold`` is awaited before the reply.
    """

    text: str = ""
    thinking: str = ""
    refusal: str = ""
    tool_calls: Sequence[tuple[str, Json]] = ()
    finish_reason: str = ""
    is_cut: bool = False
    error: int = 0
    pause: float = 0.0
    hold: Callable[[], Awaitable[object]] | None = None
    usage: ModelUsage | None = None


MAX_REQUESTS = 1000
"""The number of requests a scripted model keeps."""

Script = Callable[[ModelRequest], ScriptedReply | str | Awaitable[ScriptedReply | str]]
"""Returns the reply to a request; a plain string is a reply with that text."""


class ScriptedModel:
    """A ``Model`` whose replies come from a function.

    ``requests`` are the newest ``MAX_REQUESTS`` requests.
    """

    def __init__(self, script: Script) -> None:
        self.requests: list[ModelRequest] = []
        self._script = script
        self._calls = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Yield the scripted reply, word by word. Raises ``ModelFailed`` for an error."""
        self.requests.append(request)
        del self.requests[:-MAX_REQUESTS]
        reply = self._script(request)
        if inspect.isawaitable(reply):
            reply = await reply
        if isinstance(reply, str):
            reply = ScriptedReply(text=reply)
        assert isinstance(reply, ScriptedReply)
        if reply.hold is not None:
            await reply.hold()
        if reply.error:
            raise ModelFailed(f"the script answers {reply.error}", status=reply.error)
        for field in ("thinking", "text", "refusal"):
            text = getattr(reply, field)
            for piece in re.findall(r"\s*\S+\s*$|\s*\S+", text):
                if reply.pause:
                    await asyncio.sleep(reply.pause)
                yield ModelChunk(**{field: piece})
        if reply.is_cut:
            return
        calls = []
        for name, arguments in reply.tool_calls:
            self._calls += 1
            written = msgspec.json.encode(arguments).decode()
            calls.append(ModelToolCall(id=f"call_{self._calls}", name=name, arguments=written))
        usage = reply.usage or ModelUsage(
            input_tokens=len(msgspec.json.encode(request.messages)) // 4,
            output_tokens=max(1, len(reply.text) // 4),
        )
        yield ModelChunk(
            tool_calls=tuple(calls),
            usage=msgspec.structs.replace(usage, requests=1),
            finish_reason=reply.finish_reason or ("tool_calls" if calls else "stop"),
        )
