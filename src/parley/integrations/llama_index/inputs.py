"""Messages as chat messages, and as the start events of workflows."""

from __future__ import annotations

from typing import Any

import msgspec
from llama_index.core.llms import AudioBlock, ChatMessage, DocumentBlock, ImageBlock, TextBlock

from parley.agent.turn import Turn
from parley.integrations.answers import fitting
from parley.integrations.message_files import InputFile, input_of


async def chat_message(turn: Turn) -> str | ChatMessage:
    """Return the message that began the task as text, or as a chat message if it has files."""
    given = await input_of(turn, turn.message)
    blocks = [TextBlock(text=each) if isinstance(each, str) else _block(each) for each in given]
    if all(isinstance(each, TextBlock) for each in blocks):
        return "\n".join(each.text for each in blocks)
    return ChatMessage(role="user", blocks=blocks)


def _block(file: InputFile) -> Any:
    if file.kind == "image":
        return ImageBlock(image=file.content, image_mimetype=file.media_type)
    if file.kind == "audio":
        return AudioBlock(
            audio=file.content, format={"mpeg": "mp3"}.get(file.subtype, file.subtype)
        )
    if (text := file.text) is not None:
        return TextBlock(text=text)
    return DocumentBlock(
        data=file.content,
        title=file.filename or f"file.{file.subtype}",
        document_mimetype=file.media_type,
    )


async def start_event(turn: Turn, kind: Any) -> Any:
    """Return the start event of the class that a workflow takes: the data of a message, its text.

    The text is the first field of the class that takes a string and has no value yet, else
    ``input``. A message that does not fit ends the task as REJECTED.
    """
    message = turn.message
    values: dict[str, Any] = {}
    for part in message.parts:
        if isinstance(part.data, dict):
            values |= part.data
    if message.text:
        free = [name for name, each in kind.model_fields.items() if each.annotation is str]
        name = next((each for each in free if each not in values), "input")
        values.setdefault(name, message.text)
    if files := [each for each in await input_of(turn, message) if isinstance(each, InputFile)]:
        values.setdefault("files", [msgspec.to_builtins(each) for each in files])
    return fitting(turn, kind, values)
