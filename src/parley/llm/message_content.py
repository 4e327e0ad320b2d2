"""Parts of messages as the content of a chat message: text, images, audio, files."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from parley.engine.content import accepts
from parley.model.parts import Part

MAX_TEXT_BYTES = 256 * 1024
"""How large a text file may be that becomes a part of the conversation."""

MAX_FILE_BYTES = 20 * 1024 * 1024
"""How large an image or another file may be that is sent to a model."""

READABLE = ("application/json", "application/xml", "application/yaml", "application/x-yaml")
"""Media types that are text, beside ``text/...``."""

Read = Callable[[Part], Awaitable[bytes]]
"""Reads the bytes of a file part."""


class NotTaken(ValueError):
    """A part that the model does not take. The text says which, and what it takes."""


async def content_of(
    parts: Sequence[Part], takes: Iterable[str], read: Read
) -> str | list[dict[str, Any]]:
    """Return parts as the content of a message: text alone, or a list of content parts.

    ``takes`` are the media types of files that the model takes, such as ``image/*``; text files
    become text. Raises ``NotTaken``.
    """
    takes = tuple(takes)
    found: list[dict[str, Any]] = []
    for part in parts:
        if part.text is not None:
            found.append(_text(part.text))
        elif part.has_data:
            found.append(_text(msgspec.json.encode(part.data).decode()))
        else:
            found.append(await _file(part, takes, read))
    if all(each["type"] == "text" for each in found):
        return "\n".join(each["text"] for each in found)
    return found


def type_of(part: Part) -> str:
    """Return the media type of a file, by its name if it has none."""
    kind = part.media_type or mimetypes.guess_type(part.filename or part.url or "")[0] or ""
    return kind.partition(";")[0].strip().lower() or "application/octet-stream"


async def _file(part: Part, takes: Sequence[str], read: Read) -> dict[str, Any]:
    kind, name = type_of(part), part.filename or "a file"
    if kind.startswith("text/") or kind in READABLE:
        data = await _bounded(part, read, MAX_TEXT_BYTES)
        try:
            return _text(f"{name}:\n{data.decode()}")
        except UnicodeDecodeError:
            raise NotTaken(f"{name} says that it is {kind}, and is not UTF-8") from None
    if not takes or not accepts(takes, kind):
        taken = ", ".join(("text", *takes))
        raise NotTaken(f"this agent's model takes {taken}, and {name} is {kind}")
    data = await _bounded(part, read, MAX_FILE_BYTES)
    encoded = base64.b64encode(data).decode()
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{encoded}"}}
    if kind.startswith("audio/"):
        form = {"audio/mpeg": "mp3", "audio/x-wav": "wav"}.get(kind, kind.removeprefix("audio/"))
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": form}}
    url = f"data:{kind};base64,{encoded}"
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": url}}


async def _bounded(part: Part, read: Read, most: int) -> bytes:
    data = await read(part)
    if len(data) > most:
        name = part.filename or "a file"
        raise NotTaken(f"{name} has {len(data):,} bytes, and a model gets {most:,} at most")
    return data


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def without_files(content: Any) -> Any:
    """Return content as it is remembered: files are named, their bytes are left out."""
    if not isinstance(content, list):
        return content
    words = []
    for part in content:
        kind = part.get("type")
        name = part.get("file", {}).get("filename", "")
        words.append(part["text"] if kind == "text" else f"[{name or kind}, sent earlier]")
    return "\n".join(words)
