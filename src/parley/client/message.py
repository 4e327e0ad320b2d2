"""From what a caller has in hand to a message of the protocol."""

from __future__ import annotations

import asyncio
import math
import mimetypes
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from parley.model.parts import Message, Part, Role
from parley.model.push import TaskPushNotificationConfig
from parley.model.requests import SendMessageConfiguration, SendMessageRequest
from parley.model.tasks import Task

Content = str | bytes | Path | Part | dict[str, Any]
"""What becomes one part: text, a file's bytes, a file, a part as it is, or data."""

Sendable = Content | Sequence[Content] | Message
"""What can be sent: one part, several in order, or a message as it is."""

Push = str | TaskPushNotificationConfig
"""Where a task's events are to be posted: an address, or a whole configuration."""


def to_part(content: object) -> Part:
    """Return ``content`` as one part.

    Raises ``TypeError`` for what has no form as a part, ``OSError`` for an unreadable file.
    """
    if isinstance(content, Part):
        return content
    if isinstance(content, str):
        return Part(text=content)
    if isinstance(content, bytes | bytearray | memoryview):
        return Part(raw=bytes(content), media_type="application/octet-stream")
    if isinstance(content, Path):
        media_type = mimetypes.guess_type(content.name)[0] or "application/octet-stream"
        return Part(raw=content.read_bytes(), filename=content.name, media_type=media_type)
    if isinstance(content, dict | list):
        return Part(data=content)
    raise TypeError(
        f"a {type(content).__name__} cannot be sent; use a str, bytes, a Path, a dict or a Part"
    )


def to_parts(content: Sendable | None) -> tuple[Part, ...]:
    """Return ``content`` as parts in their order; ``None`` and nothing to say are none."""
    if content is None or content == "":
        return ()
    if isinstance(content, Message):
        return tuple(content.parts)
    if isinstance(content, list | tuple):
        return tuple(to_part(item) for item in content)
    return (to_part(content),)


def to_message(
    content: Sendable | None,
    *,
    context_id: str | None = None,
    task_id: str | None = None,
    task: Task | None = None,
    files: Sequence[str | Path | bytes | Part] = (),
    data: Any | UnsetType = UNSET,
    metadata: dict[str, Any] | None = None,
    references: Sequence[str | Task] = (),
) -> Message:
    """Return the message to send, under a fresh id unless ``content`` is a message already.

    ``files`` and ``data`` follow the content as further parts; a string among the files is a path.
    ``task`` is the task that the message belongs to: it is continued, or, when it has ended,
    referred to from a new task in the same context. What is given beside a ready message replaces
    what it says.

    Raises ``ValueError`` for a message without parts, and for numbers that JSON does not have.
    """
    refers_to = [item.id if isinstance(item, Task) else item for item in references]
    if task is not None:
        context_id = context_id or task.context_id
        if not task.state.is_terminal:
            task_id = task_id or task.id
        elif task.id not in refers_to:
            refers_to.insert(0, task.id)
    parts = [*to_parts(content)]
    parts += [to_part(Path(file) if isinstance(file, str) else file) for file in files]
    if data is not UNSET:
        parts.append(Part(data=data))
    if not parts:
        raise ValueError("there is nothing to send: give a text, a file or data")
    _check_numbers([metadata, *(part.data for part in parts)])
    given: dict[str, Any] = {"parts": tuple(parts)}
    if context_id:
        given["context_id"] = context_id
    if task_id:
        given["task_id"] = task_id
    if metadata is not None:
        given["metadata"] = metadata
    if refers_to:
        given["reference_task_ids"] = tuple(refers_to)
    if isinstance(content, Message):
        return msgspec.structs.replace(content, **given)
    return Message(message_id=str(uuid.uuid4()), role=Role.USER, **given)


def _check_numbers(values: list[Any]) -> None:
    """Refuse what JSON has no form for, and would otherwise become null on the way."""
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"JSON has no {value}; send a string or null instead")
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value)


async def compose(
    content: Sendable | None,
    *,
    files: Sequence[str | Path | bytes | Part] = (),
    message_metadata: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    accepted_output_modes: Sequence[str] = (),
    history_length: int | None = None,
    return_immediately: bool = False,
    push: Push | None = None,
    **about: Any,
) -> SendMessageRequest:
    """Return the request that sends ``content``, as ``to_message`` makes a message of it.

    Only what was asked for is configured. A slow disk does not hold up the event loop.
    """
    pieces = [*(content if isinstance(content, list | tuple) else [content]), *files]
    make = partial(to_message, content, files=files, metadata=message_metadata, **about)
    if any(isinstance(piece, Path) for piece in pieces) or any(isinstance(f, str) for f in files):
        message = await asyncio.to_thread(make)
    else:
        message = make()
    if metadata is not None:
        _check_numbers([metadata])
    configuration = SendMessageConfiguration(
        accepted_output_modes=tuple(accepted_output_modes),
        history_length=history_length,
        return_immediately=return_immediately,
        task_push_notification_config=to_config(push) if push is not None else None,
    )
    asked = configuration != SendMessageConfiguration()
    return SendMessageRequest(
        message=message, configuration=configuration if asked else None, metadata=metadata
    )


def to_config(push: Push) -> TaskPushNotificationConfig:
    """Return ``push`` as a configuration; of an address alone one that says no more."""
    return TaskPushNotificationConfig(url=push) if isinstance(push, str) else push
