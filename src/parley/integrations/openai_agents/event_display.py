"""What a turn shows of the events of a streamed run."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import agents
from agents.result import RunResultStreaming
from agents.stream_events import StreamEvent

from parley.integrations.message_files import part_of_data_url
from parley.integrations.openai_agents.output_types import is_text
from parley.llm.run_output import RunOutput
from parley.model.parts import Part

_THINKING = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_MOVES_ON = ("tool_output", "handoff_occured")


class EventDisplay:
    """Shows runs of one turn.

    Text is held back while a guardrail may still refuse it: until the input's guardrails have
    passed, and for an agent with guardrails of its output until the end. Structured output is no
    text. ``has_said`` is whether the newest message of the model was shown.
    """

    def __init__(self, output: RunOutput, config: agents.RunConfig) -> None:
        self.has_said = False
        self._output = output
        self._config = config
        self._agent = ""
        self._held: list[str] = []
        self._called: dict[str, str] = {}

    async def show(self, event: StreamEvent, result: RunResultStreaming) -> bool:
        """Show an event. Return whether a round of tool calls, or a handoff, is done with it."""
        if event.type == "raw_response_event":
            await self._raw(event.data, result)
        elif event.type == "agent_updated_stream_event":
            if self._agent and self._agent != event.new_agent.name:
                await self._forget_text()
                await self._output.step(event.new_agent.name)
            self._agent = event.new_agent.name
        elif event.name == "tool_called":
            await self._forget_text()
            await self._tool_called(event.item)
        elif event.name == "tool_output":
            await self._tool_returned(event.item)
        return event.type == "run_item_stream_event" and event.name in _MOVES_ON

    async def _raw(self, data: Any, result: RunResultStreaming) -> None:
        if data.type == "response.output_text.delta" and is_text(result.current_agent):
            self._held.append(data.delta)
            if not self._is_guarded(result):
                await self.release()
        elif data.type in _THINKING:
            await self._output.thinking(data.delta)

    def _is_guarded(self, result: RunResultStreaming) -> bool:
        current, of_all = result.current_agent, self._config
        if current.output_guardrails or of_all.output_guardrails:
            return True
        of_input = [*current.input_guardrails, *(of_all.input_guardrails or ())]
        return len(result.input_guardrail_results) < len(of_input) and not self._called

    async def release(self) -> None:
        """Show the text that was held back: no guardrail has refused it."""
        text, self._held = "".join(self._held), []
        if text:
            self.has_said = True
            await self._output.text(text)

    async def _forget_text(self) -> None:
        self._held.clear()
        self.has_said = False
        await self._output.new_message()

    async def _tool_called(self, item: Any) -> None:
        raw = _raw(item)
        name, call_id = item.tool_name or raw["type"], item.call_id or ""
        if call_id in self._called:
            return
        self._called[call_id] = name
        given = raw.get("arguments") or ""
        with suppress(TypeError, ValueError):
            given = json.loads(given)
        await self._output.tool_called(name, given, call_id=call_id)
        if raw["type"] == "image_generation_call":
            made = f"data:image/png;base64,{raw.get('result') or ''}"
            if (part := part_of_data_url(made, "image.png")) is not None:
                await self._output.file(part)

    async def _tool_returned(self, item: Any) -> None:
        call_id, shown = item.call_id or "", item.output
        made = _raw(item).get("output")  # what the model reads: one form of files
        if isinstance(made, list):
            for each in made:
                if (part := _file(each)) is not None:
                    await self._output.file(part)
            texts = [each.get("text", "(a file)") for each in made]
            shown = texts[0] if len(texts) == 1 else texts
        await self._output.tool_returned(self._called.get(call_id, ""), shown, call_id=call_id)


def _raw(item: Any) -> dict[str, Any]:
    return item.raw_item if isinstance(item.raw_item, dict) else vars(item.raw_item)


def _file(made: dict[str, Any]) -> Part | None:
    """Return the file that a part of a tool's result is, ``None`` for anything else."""
    if made.get("type") == "input_image":
        return part_of_data_url(made.get("image_url", ""), "image")
    given = made.get("file_data") or made.get("file_url", "")
    if "file_data" in made and not given.startswith("data:"):
        given = f"data:application/octet-stream;base64,{given}"
    return part_of_data_url(given, made.get("filename", "file"))
