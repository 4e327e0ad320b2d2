"""Messages as chat messages, and as the start events of workflows."""

from __future__ import annotations

from typing import Any

import msgspec
from llama_index.core.llms import AudioBlock, ChatMessage, DocumentBlock, ImageBlock, TextBlock
from llama_index.core.workflow import StartEvent, Workflow

from parley.agent.turn import Turn
from parley.integrations.message_files import InputFile, input_of
from parley.model.parts import Message


async def chat_message(turn: Turn, message: Message) -> str | ChatMessage:
    """Return a message as text, or as a chat message if it has files."""
    given = await input_of(turn, message)
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


async def start_values(turn: Turn, workflow: Workflow, message: Message) -> dict[str, Any]:
    """Return the values of a start event: the data of a message, and its text.

    The text is the first field of the event's own class that takes a string and has no value yet,
    else ``input``.
    """
    values: dict[str, Any] = {}
    for part in message.parts:
        if isinstance(part.data, dict):
            values |= part.data
    texts = [part.text for part in message.parts if part.text is not None]
    if texts:
        fields = workflow.start_event_class.model_fields
        free = [name for name, each in fields.items() if each.annotation is str]
        name = next((each for each in free if each not in values), "input")
        values.setdefault(name, "\n".join(texts))
    if files := [each for each in await input_of(turn, message) if isinstance(each, InputFile)]:
        values.setdefault("files", [msgspec.to_builtins(each) for each in files])
    return values


def start_schema(workflow: Workflow) -> dict[str, Any] | None:
    """Return the JSON Schema of a workflow's start event, ``None`` for one without fields."""
    kind = workflow.start_event_class
    return kind.model_json_schema() if kind is not StartEvent and kind.model_fields else None
