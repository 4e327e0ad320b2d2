"""The parts of a message as model input: texts, images, other files."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from parley.agent.turn import Turn
from parley.model.parts import Message, Part


class InputFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a message, with its content. ``media_type`` is never empty."""

    content: bytes
    media_type: str
    filename: str = ""

    @property
    def kind(self) -> str:
        """The first half of the media type, such as ``image``."""
        return self.media_type.partition("/")[0]

    @property
    def subtype(self) -> str:
        """The second half, without parameters, such as ``png``."""
        return self.media_type.partition("/")[2].partition(";")[0].strip()

    @property
    def base64(self) -> str:
        """The content as base64."""
        return base64.b64encode(self.content).decode()

    @property
    def data_url(self) -> str:
        """The content as a ``data:`` address."""
        return f"data:{self.media_type};base64,{self.base64}"

    @property
    def text(self) -> str | None:
        """The content of a text file under its name, ``None`` for other files."""
        is_text = self.kind == "text" or self.subtype in ("json", "xml", "yaml")
        if not is_text:
            return None
        said = self.content.decode("utf-8", errors="replace")
        return f"{self.filename or 'A file'}:\n{said}"


MAX_TOGETHER = 100_000_000
"""The total size limit of the files of a message, in bytes."""


async def input_of(
    turn: Turn, message: Message, *, max_bytes: int = 20_000_000, reads_texts: bool = True
) -> list[str | InputFile]:
    """Return the parts of a message: texts (data as JSON), and files.

    A text file is a text under its name, unless ``reads_texts`` is false. Files by reference are
    read, through the egress guard, up to ``max_bytes`` each and ``MAX_TOGETHER``. Raises subclasses
    of ``ClientError`` for unreadable files.
    """
    found: list[str | InputFile] = []
    left = MAX_TOGETHER
    for part in message.parts:
        if part.is_file:
            file = await _file(turn, part, min(max_bytes, left))
            left -= len(file.content)
            text = file.text if reads_texts else None
            found.append(file if text is None else text)
        elif part.text is not None:
            found.append(part.text)
        elif part.has_data:
            found.append(msgspec.json.encode(part.data).decode())
    return found


async def _file(turn: Turn, part: Part, max_bytes: int) -> InputFile:
    return file_of(part, await turn.file(part).read(limit=max_bytes))


def file_of(part: Part, content: bytes) -> InputFile:
    """Return a file part with its content."""
    media_type = part.media_type or "application/octet-stream"
    return InputFile(content=content, media_type=media_type, filename=part.filename)


def part_of_data_url(url: str, filename: str = "") -> Part | None:
    """Return the file in a ``data:`` address, or a file by reference for ``http``."""
    if url.startswith("data:") and ";base64," in url:
        head, _, content = url.partition(";base64,")
        try:
            raw: Any = base64.b64decode(content, validate=True)
        except ValueError:
            return None
        return Part(raw=raw, media_type=head.removeprefix("data:"), filename=filename)
    if url.startswith(("http://", "https://")):
        return Part(url=url, filename=filename)
    return None
