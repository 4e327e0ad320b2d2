"""Messages to a model: their content, their size, and the exchanges that a context remembers."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from parley.agent.turn import Turn
from parley.engine.content import accepts
from parley.llm.model import Json
from parley.model.parts import Part

MAX_RESULT = 2000
"""The number of characters of a tool's result remembered."""

MAX_SAID = 8000
"""The number of characters of one message of an overlong exchange remembered."""

MAX_TEXT_BYTES = 256 * 1024
"""The size limit of a text file in the conversation."""

MAX_FILE_BYTES = 20 * 1024 * 1024
"""The size limit of an image or other file for a model."""

READABLE = ("application/json", "application/xml", "application/yaml", "application/x-yaml")
"""Media types that are text, in addition to ``text/...``."""

Messages = list[Json]


class ModelConversation:
    """The earlier exchanges of a context.

    An exchange is a whole task: the caller's messages, the tool calls, the answer. It is added when
    the task's run has ended, so concurrent tasks do not mix; the oldest exchanges are dropped when
    all together have more than ``most`` tokens.
    """

    def __init__(self, turn: Turn, key: str, most: int) -> None:
        self._turn = turn
        self._key = f"{key}:conversation"
        self._most = most

    async def earlier(self) -> Messages:
        """Return the messages of the earlier exchanges."""
        if not self._most:
            return []
        kept = await self._turn.recall(self._key, [])
        return [
            message
            for each in kept
            if each["task"] != self._turn.task_id
            for message in each["messages"]
        ]

    async def add(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Add the exchange of this task; a further attempt replaces it."""
        if not self._most:
            return
        task_id = self._turn.task_id
        added = {"task": task_id, "messages": _fitted(messages, self._most)}

        def with_added(kept: list[Json]) -> list[Json]:
            others = [each for each in kept if each["task"] != task_id]
            left, chosen = self._most - estimated(added), [added]
            for each in reversed(others):
                left -= estimated(each)
                if left < 0:
                    break
                chosen.insert(0, each)
            return chosen

        await self._turn.update(self._key, with_added, [])


def _fitted(messages: Sequence[Mapping[str, Any]], most: int) -> Messages:
    """Return an exchange in its remembered form: without files and thinking, with short results.

    Of an exchange that is still too long only the first and the last message remain.
    """
    whole: Messages = []
    for message in messages:
        content = without_files(message.get("content"))
        if message.get("role") == "tool" and isinstance(content, str):
            content = shortened(content, MAX_RESULT)
        kept = {key: value for key, value in message.items() if key != "reasoning_content"}
        whole.append({**kept, "content": content})
    if estimated(whole) <= most:
        return whole
    ends = [whole[0], *([whole[-1]] if len(whole) > 1 else [])]
    room = min(MAX_SAID, max(100, most))  # in characters, where a token is about four
    return [
        {"role": each["role"], "content": shortened(str(each.get("content") or ""), room)}
        for each in ends
    ]


def shortened(text: str, most: int) -> str:
    """Return a text, or its beginning and the number of omitted characters."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[{len(text) - most:,} more characters are left out]"


async def content_of(turn: Turn, parts: Sequence[Part], takes: Sequence[str]) -> str | list[Json]:
    """Return parts as the content of a message: text alone, or a list of content parts.

    ``takes`` are the media types of files that the model accepts, such as ``image/*``; text files
    become text. A file that the model does not accept ends the task as REJECTED.
    """
    found: list[Json] = []
    for part in parts:
        if part.text is not None:
            found.append(_text(part.text))
        elif part.has_data:
            found.append(_text(msgspec.json.encode(part.data).decode()))
        else:
            found.append(await _file(turn, part, takes))
    if all(each["type"] == "text" for each in found):
        return "\n".join(each["text"] for each in found)
    return found


def type_of(part: Part) -> str:
    """Return the media type of a file, by its name if it has none."""
    kind = part.media_type or mimetypes.guess_type(part.filename or part.url or "")[0] or ""
    return kind.partition(";")[0].strip().lower() or "application/octet-stream"


async def _file(turn: Turn, part: Part, takes: Sequence[str]) -> Json:
    kind, name = type_of(part), part.filename or "a file"
    is_text = kind.startswith("text/") or kind in READABLE
    if not is_text and not (takes and accepts(takes, kind)):
        taken = ", ".join(("text", *takes))
        turn.reject(f"this agent's model accepts {taken}, but {name} is {kind}")
    data = await turn.file(part).read(limit=MAX_FILE_BYTES)
    most = MAX_TEXT_BYTES if is_text else MAX_FILE_BYTES
    if len(data) > most:
        turn.reject(f"{name} has {len(data):,} bytes; the limit for a model is {most:,}")
    if is_text:
        try:
            return _text(f"{name}:\n{data.decode()}")
        except UnicodeDecodeError:
            turn.reject(f"{name} is declared as {kind}, but is not UTF-8")
    encoded = base64.b64encode(data).decode()
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{encoded}"}}
    if kind.startswith("audio/"):
        form = {"audio/mpeg": "mp3", "audio/x-wav": "wav"}.get(kind, kind.removeprefix("audio/"))
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": form}}
    url = f"data:{kind};base64,{encoded}"
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": url}}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def without_files(content: Any) -> Any:
    """Return content in its remembered form: files by name, without their bytes."""
    if not isinstance(content, list):
        return content
    words = []
    for part in content:
        kind = part.get("type")
        name = part.get("file", {}).get("filename", "")
        words.append(part["text"] if kind == "text" else f"[{name or kind}, sent earlier]")
    return "\n".join(words)


def estimated(value: Any) -> int:
    """Return the approximate number of tokens of a JSON value: one for four bytes."""
    return len(msgspec.json.encode(value)) // 4 + 1
