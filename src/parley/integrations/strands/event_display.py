"""What a turn shows of the events of Strands."""

from __future__ import annotations

from typing import Any

from parley.integrations.strands.contents import file_in, shown
from parley.llm.run_output import RunOutput


class StrandsDisplay:
    """Shows events of an agent, a graph or a swarm.

    Of nodes that run at the same time only steps and tools are shown, not their text.
    ``said`` is the newest message as far as it was shown.
    """

    def __init__(self, output: RunOutput, hidden: set[str]) -> None:
        self.said = ""
        self._output = output
        self._hidden = hidden
        self._called: dict[str, str] = {}
        self._nodes: set[str] = set()

    async def show(self, event: dict[str, Any]) -> None:
        """Show an event, or nothing of it."""
        kind = event.get("type")
        if kind == "multiagent_node_start":
            self._nodes.add(event["node_id"])
            await self.begin_message()
            await self._output.step(event["node_id"])
        elif kind == "multiagent_node_stop":
            self._nodes.discard(event["node_id"])
        elif kind == "multiagent_node_stream":
            await self.show(event["event"])
        elif "messageStart" in event.get("event", {}):
            if self.said and len(self._nodes) < 2:  # what was said before is not the answer
                await self.begin_message()
        elif isinstance(text := event.get("data"), str):
            if len(self._nodes) < 2:
                self.said += text
                await self._output.text(text)
        elif isinstance(thought := event.get("reasoningText"), str):
            await self._output.thinking(thought)
        elif isinstance(message := event.get("message"), dict):
            await self._message(message)
        elif kind == "tool_stream":
            streamed = event.get("tool_stream_event", {})
            if isinstance(data := streamed.get("data"), str | int | float | dict):
                await self._output.step(streamed.get("tool_use", {}).get("name", ""), data)

    async def begin_message(self) -> None:
        """Let what is said next be the answer."""
        self.said = ""
        await self._output.new_message()

    async def _message(self, message: dict[str, Any]) -> None:
        for block in message.get("content", []):
            if (use := block.get("toolUse")) and use["name"] not in self._hidden:
                self.said = ""
                self._called[use["toolUseId"]] = use["name"]
                await self._output.tool_called(use["name"], use["input"], call_id=use["toolUseId"])
            elif (result := block.get("toolResult")) is not None:
                await self._returned(result)

    async def _returned(self, result: dict[str, Any]) -> None:
        call_id, content = result["toolUseId"], result.get("content", [])
        for block in content:
            if (part := file_in(block)) is not None:
                await self._output.file(part)
        if name := self._called.get(call_id, ""):
            is_error = result.get("status") == "error"
            await self._output.tool_returned(
                name, shown(content), call_id=call_id, is_error=is_error
            )
