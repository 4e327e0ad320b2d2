"""Messages of the framework: as JSON, and from those of A2A."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from beeai_framework.backend import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from beeai_framework.backend.message import (
    MessageFileContent,
    MessageImageContent,
    MessageTextContent,
)

from parley.agent.turn import Turn
from parley.integrations.message_files import input_of

KINDS: dict[str, Any] = {
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
    "system": SystemMessage,
}


async def message_of(turn: Turn) -> Any:
    """Return the message that began the task as one of the framework's user."""
    content: list[Any] = []
    for each in await input_of(turn, turn.message):
        if isinstance(each, str):
            content.append(MessageTextContent(text=each))
        elif each.text is not None:
            content.append(MessageTextContent(text=each.text))
        elif each.kind == "image":
            content.append(MessageImageContent(image_url={"url": each.data_url}))
        else:
            content.append(
                MessageFileContent(
                    file_data=each.data_url, filename=each.filename or None, format=each.media_type
                )
            )
    return UserMessage(content)


def written(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """Return messages as JSON, without those of the system."""
    return [
        {"role": str(message.role), "content": [_content(part) for part in message.content]}
        for message in messages
        if str(message.role) in KINDS and not isinstance(message, SystemMessage)
    ]


def read(messages: Iterable[dict[str, Any]]) -> list[Any]:
    """Return messages that ``written`` wrote."""
    return [KINDS[each["role"]](each["content"]) for each in messages]


def without_files(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages that ``written`` wrote without their files."""
    files = ("image_url", "file")
    return [
        {**each, "content": [part for part in each["content"] if part["type"] not in files]}
        for each in messages
    ]


def plain(value: Any) -> Any:
    """Return a value as JSON, if it is a pydantic model."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _content(part: Any) -> Any:
    if isinstance(part, MessageFileContent):  # its dump leaves the file out
        names = ("file_id", "file_data", "filename", "format")
        given = {name: getattr(part, name) for name in names}
        return {"type": "file", **{name: value for name, value in given.items() if value}}
    return msgspec.json.decode(msgspec.json.encode(plain(part), enc_hook=str))
