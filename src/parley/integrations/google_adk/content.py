"""Contents of ADK from and to parts of messages."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence

from google.genai import types

from parley.agent.turn import Turn
from parley.integrations.message_files import input_of
from parley.model.parts import Message, Part

TEXT = "text/plain"


async def content_of(turn: Turn, message: Message) -> types.Content:
    """Return a message as the content that a user says; its files are read."""
    parts = []
    for each in await input_of(turn, message):
        if isinstance(each, str):
            parts.append(types.Part(text=each))
        elif each.media_type != TEXT and each.text is None:
            blob = types.Blob(
                data=each.content, mime_type=each.media_type, display_name=each.filename or None
            )
            parts.append(types.Part(inline_data=blob))
        else:
            parts.append(types.Part(text=each.text))
    return types.Content(role="user", parts=parts)


def parts_of(content: types.Content | None) -> list[Part]:
    """Return what a content says as parts: texts and files, without thoughts and calls."""
    found = []
    for part in (content.parts or ()) if content is not None else ():
        if part.thought:
            continue
        if part.text:
            found.append(Part(text=part.text))
        elif (file := file_of(part)) is not None:
            found.append(file)
    return found


def file_of(part: types.Part, filename: str = "") -> Part | None:
    """Return a file of ADK as a part, ``None`` for anything else."""
    blob, data = part.inline_data, part.file_data
    if blob is not None and blob.data is not None:
        media_type = blob.mime_type or "application/octet-stream"
        name = filename or blob.display_name or f"file{mimetypes.guess_extension(media_type) or ''}"
        return Part(raw=blob.data, media_type=media_type, filename=name)
    if data is not None and data.file_uri and data.file_uri.startswith(("http://", "https://")):
        name = filename or data.display_name or ""
        return Part(url=data.file_uri, media_type=data.mime_type or "", filename=name)
    if filename and part.text is not None:
        return Part(raw=part.text.encode(), media_type=TEXT, filename=filename)
    return None


def adk_parts(parts: Sequence[Part]) -> list[types.Part]:
    """Return parts of an agent's answer as parts of ADK; data as JSON."""
    found = []
    for part in parts:
        if part.raw is not None:
            blob = types.Blob(
                data=part.raw,
                mime_type=part.media_type or "application/octet-stream",
                display_name=part.filename or None,
            )
            found.append(types.Part(inline_data=blob))
        elif part.url is not None:
            data = types.FileData(
                file_uri=part.url,
                mime_type=part.media_type or "application/octet-stream",
                display_name=part.filename or None,
            )
            found.append(types.Part(file_data=data))
        elif part.text is not None:
            if part.text:
                found.append(types.Part(text=part.text))
        else:
            found.append(types.Part(text=json_of(part.data)))
    return found


def json_of(value: object) -> str:
    """Return a value as JSON text."""
    import msgspec

    return msgspec.json.encode(value).decode()
