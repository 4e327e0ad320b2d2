"""Messages and files of A2A as those of the framework, and back."""

from __future__ import annotations

from typing import Any

from agent_framework import Content, Message

from parley.agent.turn import Turn
from parley.integrations.message_files import input_of, part_of_data_url
from parley.model.parts import Part


async def message_of(turn: Turn) -> Any:
    """Return the message that began the task as one of the framework's user."""
    contents = []
    for each in await input_of(turn, turn.message):
        if isinstance(each, str):
            contents.append(Content.from_text(each))
        elif each.text is not None:
            contents.append(Content.from_text(each.text))
        else:
            named = {"filename": each.filename} if each.filename else None
            contents.append(
                Content.from_data(each.content, each.media_type, additional_properties=named)
            )
    return Message("user", contents)


def file_of(content: Any) -> Part | None:
    """Return content of the framework as a file part, ``None`` if it is no file."""
    if content.type not in ("data", "uri") or not content.uri:
        return None
    filename = str(content.additional_properties.get("filename", ""))
    part = part_of_data_url(content.uri, filename)
    if part is None or part.media_type:
        return part
    return Part(url=part.url, media_type=content.media_type or "", filename=filename)
