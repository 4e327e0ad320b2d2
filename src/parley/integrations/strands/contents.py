"""Messages and tool results as content blocks, and events of Strands as output of a turn."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from strands.types.session import encode_bytes_values

from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.conversations import replaced
from parley.integrations.message_files import InputFile, file_of, input_of
from parley.llm.run_output import RunOutput
from parley.model.parts import Part

IMAGES = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "gif": "gif", "webp": "webp"}
VIDEOS = {"mp4": "mp4", "quicktime": "mov", "webm": "webm", "x-matroska": "mkv", "mpeg": "mpeg"}
DOCUMENTS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}


async def prompt_of(turn: Turn) -> list[dict[str, Any]]:
    """Return a turn's message as content blocks. A file that no block can hold rejects the turn."""
    blocks = []
    for each in await input_of(turn, turn.message, reads_texts=False):
        block = {"text": each} if isinstance(each, str) else _block(each)
        if block is None:
            assert isinstance(each, InputFile)
            turn.reject(f"Files of the type {each.media_type} cannot be read by this agent.")
        blocks.append(block)
    return blocks


def _block(file: InputFile) -> dict[str, Any] | None:
    source = {"bytes": file.content}
    media_type = file.media_type.partition(";")[0].strip()
    if file.kind == "image" and file.subtype in IMAGES:
        return {"image": {"format": IMAGES[file.subtype], "source": source}}
    if file.kind == "video" and file.subtype in VIDEOS:
        return {"video": {"format": VIDEOS[file.subtype], "source": source}}
    if media_type in DOCUMENTS:
        name = re.sub(r"[^A-Za-z0-9 ()\[\]-]+", "-", file.filename.rpartition(".")[0]) or "document"
        return {"document": {"format": DOCUMENTS[media_type], "name": name, "source": source}}
    return None if file.text is None else {"text": file.text}


def written(value: Any) -> Any:
    """Return a state as JSON, with bytes as Strands writes them."""
    return msgspec.json.decode(msgspec.json.encode(encode_bytes_values(value)))


def without_files(messages: list[Any]) -> list[Any]:
    """Return messages in which files are words that say what was there."""

    def words(block: dict[str, Any]) -> Any | None:
        for kind in ("image", "document", "video"):
            if isinstance(block.get(kind), dict) and "source" in block[kind]:
                return {"text": f"(there was a file: {kind})"}
        return None

    found: list[Any] = replaced(messages, words)
    return found


def blocks_of(result: ToolResult) -> list[dict[str, Any]]:
    """Return the result of a remote skill as the content of a tool result."""
    blocks: list[dict[str, Any]] = []
    for part in result.parts:
        if part.text is not None:
            blocks.append({"text": part.text})
        elif part.has_data:
            blocks.append({"json": part.data})
        elif part.raw is not None:
            file = file_of(part, part.raw)
            blocks.append(_block(file) or {"text": f"(a file: {part.filename or file.media_type})"})
        elif part.url is not None:
            blocks.append({"text": f"(a file: {part.url})"})
    return blocks or [{"text": "(nothing)"}]


def file_in(block: dict[str, Any]) -> Part | None:
    """Return the file that a block of a tool result has, ``None`` without one."""
    for kind in ("image", "video", "document"):
        held = block.get(kind)
        if isinstance(held, dict) and isinstance(raw := held.get("source", {}).get("bytes"), bytes):
            ending = str(held.get("format", ""))
            types = {value: key for key, value in DOCUMENTS.items()}
            media_type = types.get(ending, "text/plain") if kind == "document" else ""
            name = str(held.get("name") or kind)
            return Part(
                raw=raw, media_type=media_type or f"{kind}/{ending}", filename=f"{name}.{ending}"
            )
    return None


def shown(content: list[Any]) -> Any:
    """Return the content of a tool result as progress shows it."""
    values = [each["text"] if "text" in each else each.get("json", "(a file)") for each in content]
    return values[0] if len(values) == 1 else values


class StrandsDisplay:
    """Shows events of an agent, a graph or a swarm.

    Of nodes that run at the same time only steps and tools are shown, not their text.
    """

    def __init__(self, output: RunOutput, hidden: set[str]) -> None:
        self._output = output
        self._hidden = hidden
        self._called: dict[str, str] = {}
        self._nodes: set[str] = set()

    async def show(self, event: dict[str, Any]) -> None:
        """Show an event, or nothing of it."""
        kind = event.get("type")
        if kind == "multiagent_node_start":
            self._nodes.add(event["node_id"])
            await self._output.new_message()
            await self._output.step(event["node_id"])
        elif kind == "multiagent_node_stop":
            self._nodes.discard(event["node_id"])
        elif kind == "multiagent_node_stream":
            await self.show(event["event"])
        elif "messageStart" in event.get("event", {}):
            if self._output.said and len(self._nodes) < 2:  # what was said before is not the answer
                await self._output.new_message()
        elif isinstance(text := event.get("data"), str):
            if len(self._nodes) < 2:
                await self._output.text(text)
        elif isinstance(thought := event.get("reasoningText"), str):
            await self._output.thinking(thought)
        elif isinstance(message := event.get("message"), dict):
            await self._message(message)
        elif kind == "tool_stream":
            streamed = event.get("tool_stream_event", {})
            if isinstance(data := streamed.get("data"), str | int | float | dict):
                await self._output.step(streamed.get("tool_use", {}).get("name", ""), data)

    async def _message(self, message: dict[str, Any]) -> None:
        for block in message.get("content", []):
            if (use := block.get("toolUse")) and use["name"] not in self._hidden:
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
