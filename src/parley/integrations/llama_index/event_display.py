"""What a turn shows of the events of a workflow."""

from __future__ import annotations

from typing import Any

from llama_index.core.agent.workflow import AgentOutput, AgentStream, ToolCall, ToolCallResult
from llama_index.core.workflow import Event, InputRequiredEvent, StopEvent
from workflows.events import InternalDispatchEvent

from parley.llm.model_usage import ModelUsage
from parley.llm.run_output import RunOutput


class WorkflowDisplay:
    """Shows events: tokens, tool calls, agents that take over, events of the author's own.

    ``said`` is the newest message as far as it was shown. ``used`` is what the models used so far.
    """

    def __init__(self, output: RunOutput) -> None:
        self.said = ""
        self.used = ModelUsage()
        self._output = output
        self._agent = ""

    async def show(self, event: Event) -> None:
        """Show an event, or nothing of it."""
        name = getattr(event, "current_agent_name", None)
        if isinstance(name, str) and name and name != self._agent:
            if self._agent:
                await self._begin_message()
                await self._output.step(name)
            self._agent = name
        if isinstance(event, AgentStream):
            self._count(event.raw)
            if event.thinking_delta:
                await self._output.thinking(event.thinking_delta)
            self.said += event.delta
            await self._output.text(event.delta)
        elif isinstance(event, AgentOutput):
            if not self.said:
                self._count(event.raw)
        elif isinstance(event, ToolCall):
            self.said = ""
            await self._output.tool_called(
                event.tool_name, event.tool_kwargs, call_id=event.tool_id
            )
        elif isinstance(event, ToolCallResult):
            result = event.tool_output
            await self._output.tool_returned(
                event.tool_name, result.content, call_id=event.tool_id, is_error=result.is_error
            )
        elif _is_own(event):
            await self._output.step(type(event).__name__, event.model_dump(mode="json"))

    async def _begin_message(self) -> None:
        self.said = ""
        await self._output.new_message()

    def _count(self, raw: Any) -> None:
        usage = raw.get("usage") if isinstance(raw, dict) else getattr(raw, "usage", None)
        if usage is None:
            return
        if not isinstance(usage, dict):
            usage = usage.model_dump()
        self.used += ModelUsage(
            input_tokens=usage.get("prompt_tokens") or usage.get("input_tokens") or 0,
            output_tokens=usage.get("completion_tokens") or usage.get("output_tokens") or 0,
            requests=1,
        )


def _is_own(event: Event) -> bool:
    """Return whether an event is of the author's own: not one of the framework."""
    if isinstance(event, InternalDispatchEvent | StopEvent | InputRequiredEvent):
        return False
    return not type(event).__module__.startswith(("llama_index.", "workflows."))
