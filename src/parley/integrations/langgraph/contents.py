"""Parts of A2A as the content of LangChain's messages, and back."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from parley.agent.turn import Turn
from parley.integrations.message_files import InputFile, input_of, part_of_data_url
from parley.model.parts import Message, Part

KINDS = ("image", "audio", "video")


async def human_message(turn: Turn, message: Message) -> HumanMessage:
    """Return what a caller said as a message, with the id of theirs: it is added once."""
    said = await input_of(turn, message)
    if all(isinstance(each, str) for each in said):
        return HumanMessage("\n".join(map(str, said)), id=message.message_id)
    blocks = [
        {"type": "text", "text": each} if isinstance(each, str) else _block(each) for each in said
    ]
    return HumanMessage(blocks, id=message.message_id)


def _block(file: InputFile) -> dict[str, Any]:
    if (text := file.text) is not None:
        return {"type": "text", "text": text}
    return file_block(file.base64, file.media_type, file.filename or "file")


def file_block(content: str, media_type: str, filename: str) -> dict[str, Any]:
    """Return a file, as base64, as a block of content."""
    kind = media_type.partition("/")[0]
    block = {"type": kind, "base64": content, "mime_type": media_type}
    return block if kind in KINDS else {**block, "type": "file", "filename": filename}


def text_of(message: BaseMessage) -> str:
    """Return the text of a message, without thinking."""
    if isinstance(message.content, str):
        return message.content
    found = []
    for block in message.content:
        if isinstance(block, str):
            found.append(block)
        elif block.get("type") == "text":
            found.append(str(block.get("text", "")))
    return "".join(found)


def thinking_of(message: BaseMessage) -> str:
    """Return the thinking of a message, or of a piece of one."""
    found = str(message.additional_kwargs.get("reasoning_content") or "")
    blocks = message.content if isinstance(message.content, list) else []
    for block in blocks:
        if isinstance(block, dict) and block.get("type") in ("reasoning", "thinking"):
            found += str(block.get("reasoning") or block.get("thinking") or "")
    return found


def files_in(message: BaseMessage) -> list[Part]:
    """Return the files that a model or a tool made: in the content, or as a tool's artifact."""
    found: list[Part] = []
    if isinstance(message, ToolMessage):
        artifact = message.artifact
        each = artifact if isinstance(artifact, list | tuple) else [artifact]
        found += [part for part in each if isinstance(part, Part)]
    blocks = message.content if isinstance(message.content, list) else []
    if isinstance(message, AIMessage | ToolMessage):
        found += [part for block in blocks if (part := file_in(block)) is not None]
    return found


def file_in(block: Any) -> Part | None:
    """Return the file that a block of content is, ``None`` for others."""
    if not isinstance(block, dict):
        return None
    if block.get("type") == "image_url":
        address = block.get("image_url")
        return part_of_data_url(address["url"] if isinstance(address, dict) else str(address))
    if block.get("type") not in (*KINDS, "file"):
        return None
    name, media_type = str(block.get("filename") or ""), str(block.get("mime_type") or "")
    if content := block.get("base64") or block.get("data"):
        try:
            raw = base64.b64decode(content, validate=True)
        except ValueError:
            return None
        return Part(raw=raw, media_type=media_type, filename=name)
    if isinstance(address := block.get("url"), str) and address.startswith(("http:", "https:")):
        return Part(url=address, media_type=media_type, filename=name)
    return None


def messages_in(value: Any) -> Sequence[BaseMessage]:
    """Return the messages of a state."""
    found = value.get("messages") if isinstance(value, dict) else getattr(value, "messages", None)
    if not isinstance(found, list | tuple):
        return ()
    return [each for each in found if isinstance(each, BaseMessage)]
