"""What a turn shows of a run: the answer as an artifact, all else as progress."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import msgspec

from parley.agent.artifact_stream import ArtifactStream
from parley.agent.turn import Turn
from parley.engine.turn.attempt import Failed, Rejected
from parley.extensions.usage import RUN_PROGRESS, Spent
from parley.llm.current_turn import within
from parley.llm.model_requests import ModelRequests
from parley.llm.model_usage import ModelUsage
from parley.model.parts import Part

THINKING_SECONDS = 0.1
"""How often thinking is shown, at most."""

MAX_SHOWN = 4000
"""How many characters of arguments and results of tools progress shows."""


class RunOutput:
    """Shows a run of a model or a framework in a turn; an async context manager.

    The text of the newest message is the artifact ``answer``: it is streamed, and begins anew when
    the model says something else after a tool call. Thinking, tool calls and steps are status
    updates without a message, so they are streamed but are not in the task. ``requests`` has what
    models used, which the metadata of the answer says.
    """

    def __init__(
        self, turn: Turn, *, artifact: str = "answer", requests: ModelRequests | None = None
    ) -> None:
        self.turn = turn
        self.requests = requests or ModelRequests(turn)
        self._name = artifact
        self._stream: ArtifactStream | None = None
        self._thoughts: list[str] = []
        self._thought_at = 0.0
        self._exits = ExitStack()

    async def __aenter__(self) -> Self:
        self._exits.enter_context(within(self.turn))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exits.close()
        if error is None:
            await self._show_thoughts()
        stream, self._stream = self._stream, None
        if stream is not None and error is None:
            await stream.close(metadata=self.requests.said(self._name))
        elif stream is not None:
            await stream.__aexit__(kind, error, traceback)
        ended = self.turn._attempt.ending or error
        if isinstance(ended, Failed | Rejected) and ended.metadata is None:
            ended.metadata = self.requests.said() or None

    # -- the answer ----------------------------------------------------------------------------

    async def text(self, delta: str) -> None:
        """Add to the answer."""
        if not delta:
            return
        await self._show_thoughts()
        self.requests.has_said = True
        if self._stream is None:
            self._stream = self.turn.stream(self._name, artifact_id=self._name)
            await self._stream.__aenter__()
        await self._stream.write(delta)

    async def new_message(self) -> None:
        """Let what is said next replace the answer: what was said was not the last word."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await stream.close()

    async def data(
        self, value: Any, *, schema: Mapping[str, Any] | None = None, name: str = "result"
    ) -> None:
        """Write structured output as an artifact with a data part; its metadata has the schema."""
        metadata = {} if schema is None else {"schema": dict(schema)}
        await self.new_message()
        part = Part(data=value, media_type="application/json")
        metadata |= self.requests.said(name)
        self.requests.has_said = True
        await self.turn.artifact(part, name=name, artifact_id=name, metadata=metadata)

    async def file(self, part: Part, *, name: str = "") -> None:
        """Write a file that the run made as an artifact."""
        self.requests.has_said = True
        await self.turn.artifact(part, name=name or part.filename)

    # -- progress ------------------------------------------------------------------------------

    async def thinking(self, delta: str) -> None:
        """Show thinking. It is progress: nothing of it is left when the task has ended."""
        self._thoughts.append(delta)
        now = asyncio.get_running_loop().time()
        if now - self._thought_at >= THINKING_SECONDS:
            self._thought_at = now
            await self._show_thoughts()

    async def tool_called(self, name: str, arguments: object, *, call_id: str = "") -> None:
        """Show that a tool is called. What the model said before was not the answer."""
        await self._show_thoughts()
        await self.new_message()
        shown = {"kind": "toolCall", "id": call_id, "name": name, "arguments": _bounded(arguments)}
        await self.turn.working(metadata={RUN_PROGRESS: shown})

    async def tool_returned(
        self, name: str, result: object, *, call_id: str = "", is_error: bool = False
    ) -> None:
        """Show what a tool returned."""
        shown = {"kind": "toolResult", "id": call_id, "name": name, "result": _bounded(result)}
        if is_error:
            shown["isError"] = True
        await self.turn.working(metadata={RUN_PROGRESS: shown})

    async def step(self, name: str, detail: object = None) -> None:
        """Show that a node, an agent or another step of the framework begins."""
        shown: dict[str, Any] = {"kind": "step", "name": name}
        if detail is not None:
            shown["detail"] = _bounded(detail)
        await self.turn.working(metadata={RUN_PROGRESS: shown})

    async def _show_thoughts(self) -> None:
        if self._thoughts:
            text, self._thoughts = "".join(self._thoughts), []
            await self.turn.working(metadata={RUN_PROGRESS: {"kind": "thinking", "text": text}})

    # -- usage ---------------------------------------------------------------------------------

    def used(self, usage: ModelUsage) -> None:
        """Add to what the run used."""
        self.requests.count(usage)

    def also_spent(self, spent: Spent) -> None:
        """Add what a tool or another agent has cost to what the answer says that it has cost."""
        self.requests.spent += spent

    @property
    def total(self) -> Spent:
        """What the run has cost until now, with its tools and the agents that it called."""
        return self.requests.total

    def said_usage(self) -> dict[str, Any]:
        """Return the metadata that says what the run has used; nothing if it has asked nobody."""
        return self.requests.said()


def _bounded(value: object) -> Any:
    """Return a value as JSON, or the beginning of its text if it is long or no JSON.

    What is no JSON within it, such as the ``str`` of a subclass, is its text.
    """
    try:
        written = msgspec.json.encode(value, enc_hook=str)
    except (TypeError, ValueError):
        return str(value)[:MAX_SHOWN]
    if len(written) <= MAX_SHOWN:
        return msgspec.json.decode(written)
    return written.decode(errors="ignore")[:MAX_SHOWN]
