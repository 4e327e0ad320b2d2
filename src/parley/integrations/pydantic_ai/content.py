"""Contents of Pydantic AI from and to parts of messages."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FileUrl,
    ImageUrl,
    UserContent,
    VideoUrl,
)

from parley.agent.turn import Turn
from parley.integrations.message_files import input_of
from parley.model.parts import Message, Part


async def prompt_of(turn: Turn, message: Message) -> str | list[UserContent]:
    """Return a message as a prompt; its files are read."""
    said: list[UserContent] = []
    for each in await input_of(turn, message):
        if isinstance(each, str):
            said.append(each)
        elif each.text is not None:
            said.append(each.text)
        else:
            said.append(BinaryContent(data=each.content, media_type=each.media_type))
    if all(isinstance(each, str) for each in said):
        return "\n".join(str(each) for each in said)
    return said


def file_of(value: Any) -> Part | None:
    """Return a file of Pydantic AI as a part, ``None`` for anything else."""
    if isinstance(value, BinaryContent):
        name = f"file{mimetypes.guess_extension(value.media_type) or ''}"
        return Part(raw=value.data, media_type=value.media_type, filename=name)
    if isinstance(value, FileUrl) and value.url.startswith(("http://", "https://")):
        guessed = mimetypes.guess_type(value.url)[0]
        return Part(url=value.url, media_type=guessed or "")
    return None


def contents_of(parts: Sequence[Part]) -> list[UserContent]:
    """Return the files among parts as contents of Pydantic AI."""
    found: list[UserContent] = []
    kinds: dict[str, Any] = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
    for part in parts:
        media_type = part.media_type or "application/octet-stream"
        if part.raw is not None:
            found.append(BinaryContent(data=part.raw, media_type=media_type))
        elif part.url is not None:
            kind = kinds.get(media_type.partition("/")[0], DocumentUrl)
            found.append(kind(url=part.url, media_type=media_type))
    return found
