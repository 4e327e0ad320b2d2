"""Messages as the input items of a run."""

from __future__ import annotations

from typing import Any

from parley.agent.turn import Turn
from parley.integrations.message_files import InputFile, input_of


async def input_item(turn: Turn) -> dict[str, Any]:
    """Return the message of a turn as an item of the user: text, images, audio and other files."""
    content = [_content(each) for each in await input_of(turn, turn.message)]
    if all(each["type"] == "input_text" for each in content):
        return {"role": "user", "content": "\n".join(each["text"] for each in content)}
    return {"role": "user", "content": content}


def _content(given: str | InputFile) -> dict[str, Any]:
    if isinstance(given, str):
        return {"type": "input_text", "text": given}
    if given.kind == "image":
        return {"type": "input_image", "image_url": given.data_url, "detail": "auto"}
    if given.kind == "audio":
        kind = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}.get(given.subtype, given.subtype)
        return {"type": "input_audio", "input_audio": {"data": given.base64, "format": kind}}
    if (text := given.text) is not None:
        return {"type": "input_text", "text": text}
    return {
        "type": "input_file",
        "file_data": given.data_url,
        "filename": given.filename or f"file.{given.subtype}",
    }
