"""What a graph streams, shown in the turn that runs it."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from pydantic_core import to_jsonable_python

from parley.integrations.langgraph.contents import files_in, text_of, thinking_of
from parley.integrations.langgraph.replies import AS_DATA
from parley.llm.run_output import RunOutput
from parley.model.parts import Artifact, Part

STREAM_MODES = ("messages", "custom", "tasks")
"""What is asked of a graph: messages by pieces, what nodes write, beginnings and ends of nodes."""

HIDDEN = "langsmith:hidden"
"""The tag of nodes that LangGraph itself does not show."""


class Shown:
    """Shows the events of one run: tokens, tool calls, nodes, and what nodes write.

    One message is streamed at a time: the pieces of others that are made beside it wait for its
    end. Structured output is no text. ``answer`` is the text that was shown last.
    """

    def __init__(self, output: RunOutput) -> None:
        self.answer = ""
        self._output = output
        self._made: dict[str, AIMessageChunk] = {}
        self._ended: set[str] = set()
        self._as_data: set[str] = set()
        self._streamed = ""
        self._nodes: dict[str, str] = {}
        self._names: dict[str, str] = {}

    async def event(self, mode: str, data: Any) -> None:
        """Show one event of ``astream(stream_mode=STREAM_MODES, subgraphs=True)``."""
        if mode == "messages":
            message, metadata = data
            if metadata.get(AS_DATA):
                self._as_data.add(message.id or "")
            await self._message(message, str(metadata.get("langgraph_node", "")))
        elif mode == "custom":
            await self._written(data)
        elif mode == "tasks":
            if "result" not in data:
                await self._output.step(data["name"])
            else:
                await self._node_ended(data["name"])

    async def finish(self, text: str | None) -> None:
        """Let ``text`` be the answer, if it is not what was shown last."""
        for message_id in list(self._made):
            await self._end(message_id)
        if text and text != self.answer:
            await self._output.new_message()
            await self._output.text(text)
            self.answer = text

    # -- messages ------------------------------------------------------------------------------

    async def _message(self, message: BaseMessage, node: str) -> None:
        if isinstance(message, AIMessageChunk):
            await self._piece(message, node)
        elif isinstance(message, AIMessage):
            await self._whole(message)
        elif isinstance(message, ToolMessage):
            await self._end_all_of_calls(message.tool_call_id)
            name = message.name or self._names.get(message.tool_call_id, "tool")
            await self._output.tool_returned(
                name,
                message.text if isinstance(message.content, list) else message.content,
                call_id=message.tool_call_id,
                is_error=message.status == "error",
            )
            await self._files(message)

    async def _piece(self, piece: AIMessageChunk, node: str) -> None:
        message_id = piece.id or ""
        if message_id in self._ended:
            return
        whole = self._made.get(message_id)
        self._made[message_id] = piece if whole is None else whole + piece
        self._nodes[message_id] = node
        if thought := thinking_of(piece):
            await self._output.thinking(thought)
        if text := self._text_of(piece):
            if not self._streamed:
                await self._begin(message_id)
            if self._streamed == message_id:
                self.answer += text
                await self._output.text(text)
        if piece.chunk_position == "last":
            await self._end(message_id)

    def _text_of(self, message: BaseMessage) -> str:
        return "" if (message.id or "") in self._as_data else text_of(message)

    async def _begin(self, message_id: str) -> None:
        await self._output.new_message()
        self._streamed, self.answer = message_id, ""

    async def _whole(self, message: AIMessage) -> None:
        """Show a message that was not made by pieces."""
        if (message.id or "") in self._ended:
            return
        await self._said(message)

    async def _node_ended(self, node: str) -> None:
        for message_id in [each for each in self._made if self._nodes.get(each) == node]:
            await self._end(message_id)

    async def _end_all_of_calls(self, call_id: str) -> None:
        for message_id, message in list(self._made.items()):
            if any(call["id"] == call_id for call in message.tool_calls):
                await self._end(message_id)

    async def _end(self, message_id: str) -> None:
        whole = self._made.pop(message_id, None)
        if whole is None:
            return
        await self._said(whole, is_shown=self._streamed == message_id)

    async def _said(self, message: AIMessage, *, is_shown: bool = False) -> None:
        """Show the rest of a message that is complete: its text, files and calls."""
        self._ended.add(message.id or "")
        if is_shown:
            self._streamed = ""
        elif text := self._text_of(message):
            if self._streamed:  # another one is shown; this one is not the last word
                return await self._called(message)
            await self._output.new_message()
            await self._output.text(text)
            self.answer = text
        await self._files(message)
        await self._called(message)

    async def _called(self, message: AIMessage) -> None:
        for call in message.tool_calls:
            self._names[call["id"] or ""] = call["name"]
            await self._output.tool_called(call["name"], call["args"], call_id=call["id"] or "")

    async def _files(self, message: BaseMessage) -> None:
        for part in files_in(message):
            await self._output.file(part)

    # -- what nodes write ----------------------------------------------------------------------

    async def _written(self, value: Any) -> None:
        """Show what a node wrote to its stream: text as a status, files, other values as steps."""
        if isinstance(value, str):
            await self._output.turn.working(value)
        elif isinstance(value, Part):
            await self._output.file(value)
        elif isinstance(value, Artifact):
            await self._output.turn.artifact(value)
        else:
            detail = to_jsonable_python(value, serialize_unknown=True)
            await self._output.step("custom", detail)
