"""A model that follows a script: for examples without an endpoint, and for tests."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from parley.llm.model import ModelChunk, ModelFailed, ModelRequest, ModelToolCall
from parley.llm.model_usage import ModelUsage


class ScriptedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply of a script: text, tool calls (name and arguments), or an HTTP error.

    ``refusal`` is what the model says where it refuses. ``finish_reason`` is how the reply ends,
    without one ``tool_calls`` or ``stop``; with ``is_cut`` it breaks off after what it has said.
    ``pause`` is how many seconds pass before each piece, ``hold`` what is awaited before the reply.
    """

    text: str = ""
    thinking: str = ""
    refusal: str = ""
    tool_calls: Sequence[tuple[str, dict[str, Any]]] = ()
    finish_reason: str = ""
    is_cut: bool = False
    error: int = 0
    pause: float = 0.0
    hold: Callable[[], Awaitable[object]] | None = None
    usage: ModelUsage | None = None


MAX_REQUESTS = 1000
"""How many requests a scripted model keeps."""

Script = Callable[[ModelRequest], ScriptedReply | str | Awaitable[ScriptedReply | str]]
"""Returns the reply to a request; a plain string is a reply with that text."""


class ScriptedModel:
    """A ``Model`` whose replies a function decides.

    ``requests`` has what it was asked, the newest ``MAX_REQUESTS``.
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
