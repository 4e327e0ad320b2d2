"""What the updates of a run show in its turn."""

from __future__ import annotations

from typing import Any

from parley.integrations.agent_framework.contents import file_of
from parley.integrations.agent_framework.replay import is_refusal
from parley.llm.run_output import RunOutput


class ShownUpdates:
    """Shows updates: text as the answer unless ``hidden``, tool calls, thinking, files.

    The arguments of a call come in pieces; it is shown when the next content has begun.
    """

    def __init__(self, output: RunOutput, *, hidden: bool = False) -> None:
        self._output = output
        self._hidden = hidden
        self._calls: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._newest = ""

    async def update(self, update: Any) -> None:
        """Show an update of an agent."""
        for content in update.contents:
            await self.content(content)

    async def content(self, content: Any) -> None:
        """Show one piece of content."""
        if content.type == "function_call":
            self._call(content)
            return
        await self.flush()
        match content.type:
            case "text" if content.text and not self._hidden and not is_refusal(content):
                await self._output.text(content.text)
            case "text_reasoning" if content.text:
                await self._output.thinking(content.text)
            case "function_result":
                name = self._names.pop(content.call_id, "tool")
                await self._output.tool_returned(
                    name,
                    content.result,
                    call_id=content.call_id,
                    is_error=content.exception is not None,
                )
            case "data" | "uri":
                part = file_of(content)
                if part is not None:
                    await self._output.file(part)

    async def flush(self) -> None:
        """Show the calls whose arguments are whole."""
        calls, self._calls = self._calls, {}
        for call_id, call in calls.items():
            self._names[call_id] = call.name
            arguments = call.parse_arguments() or {}
            await self._output.tool_called(call.name, arguments, call_id=call_id)

    def _call(self, content: Any) -> None:
        call_id = content.call_id or self._newest
        self._newest = call_id
        begun = self._calls.get(call_id)
        self._calls[call_id] = content if begun is None else begun + content
