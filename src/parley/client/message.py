"""Builds messages and requests from a caller's text, files and data."""

from __future__ import annotations

import asyncio
import math
import mimetypes
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from parley.client.answer import Answer
from parley.model.cards import AgentCard
from parley.model.errors import an
from parley.model.operations import (
    SKILL_KEY,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
    named_skill,
    unknown_skill,
)
from parley.model.parts import Message, Part, Role
from parley.model.tasks import Task

Content = str | bytes | Path | Part | dict[str, Any]
"""The content of a part: text, bytes, a file, a ready part, or data."""

Sendable = Content | Sequence[Content] | Message
"""The content of a message: one part, several in order, or a ready message."""

Push = str | TaskPushNotificationConfig
"""The webhook for a task's events: an address, or a whole configuration."""


class MessageOptions(TypedDict, total=False):
    """The options of a message.

    ``task`` is the task that the message belongs to: the message continues it, or, if it has ended,
    starts a new task in the same context that refers to it. ``task_id`` and ``context_id`` name
    them, ``references`` further tasks. ``files`` and ``data`` become parts after the content.
    ``skill`` is the id of a skill on the card; it is sent in the request's metadata under
    ``skill``, where Parley's agents read it. ``metadata`` becomes part of the request,
    ``message_metadata`` of the message and so of the task's history. ``push`` is the webhook for
    the task's events.
    """

    context_id: str | None
    task_id: str | None
    task: Task | Answer[Any] | None
    files: Sequence[str | Path | bytes | Part]
    data: Any | UnsetType
    skill: str | None
    metadata: dict[str, Any] | None
    message_metadata: dict[str, Any] | None
    references: Sequence[str | Task | Answer[Any]]
    accepted_output_modes: Sequence[str]
    push: Push | None
    history_length: int | None


def to_part(content: object) -> Part:
    """Return ``content`` as one part.

    Raises ``TypeError`` for any other type, ``OSError`` for an unreadable file.
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
        f"{an(type(content).__name__)} cannot be sent; use a str, bytes, a Path, a dict or a Part"
    )


def to_parts(content: Sendable | None) -> tuple[Part, ...]:
    """Return ``content`` as parts in order; none for ``None`` and an empty text."""
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
    task: Task | Answer[Any] | None = None,
    files: Sequence[str | Path | bytes | Part] = (),
    data: Any | UnsetType = UNSET,
    metadata: dict[str, Any] | None = None,
    references: Sequence[str | Task | Answer[Any]] = (),
) -> Message:
    """Return the message to send, with a new id unless ``content`` is a ready message.

    ``files`` and ``data`` become further parts after the content; a string among the files is a
    path. ``task`` is the task that the message belongs to: the message continues it, or, if it has
    ended, starts a new task in the same context that refers to it. The other arguments override the
    members of a ready message.

    Raises ``ValueError`` for a message without parts, for numbers that JSON does not have, and for
    lone surrogates.
    """
    refers_to = [item if isinstance(item, str) else item.id for item in references]
    if task is not None:
        context_id = context_id or task.context_id
        if not task.id:  # a direct message: its context continues
            pass
        elif not task.state.is_terminal:
            task_id = task_id or task.id
        elif task.id not in refers_to:
            refers_to.insert(0, task.id)
    parts = to_parts(content)
    if files:
        parts += tuple([to_part(Path(each) if isinstance(each, str) else each) for each in files])
    if data is not UNSET:
        parts += (Part(data=data),)
    if not parts:
        raise ValueError("there is nothing to send: give a text, a file or data")
    in_parts = [(part.text, part.data, part.filename, part.metadata) for part in parts]
    _check_values([metadata, context_id, task_id, *in_parts])
    given: dict[str, Any] = {"parts": parts}
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


def _check_values(values: list[Any]) -> None:
    """Raise ``ValueError`` for numbers that JSON cannot express, and for text that UTF-8 cannot.

    Such numbers would become null.
    """
    pending = list(values)
    seen: set[int] = set()  # a value that contains itself is rejected when it is encoded
    while pending:
        value = pending.pop()
        if isinstance(value, str) and not value.isascii():
            _check_text(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"JSON has no {value}; send a string or null instead")
        if isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            pending.extend(value)
            if isinstance(value, dict):
                pending.extend(value.values())


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ord(text[error.start])
        raise ValueError(
            f"the text has half of a character (U+{half:04X}, a lone surrogate) at position "
            f"{error.start}, which cannot be sent: cut texts between characters, or send "
            "text.encode('utf-8', 'replace').decode()"
        ) from None


async def compose(
    content: Sendable | None,
    *,
    files: Sequence[str | Path | bytes | Part] = (),
    message_metadata: dict[str, Any] | None = None,
    skill: str | None = None,
    card: AgentCard | None = None,
    metadata: dict[str, Any] | None = None,
    accepted_output_modes: Sequence[str] = (),
    history_length: int | None = None,
    return_immediately: bool = False,
    push: Push | None = None,
    **about: Any,
) -> SendMessageRequest:
    """Return the request that sends ``content``, as built by ``to_message``, to a skill of a card.

    A default configuration is left out. Files are read in a thread. Raises ``InvalidParamsError``
    for a skill that the card does not have, unless an extended card may have it.
    """
    if skill is not None:
        if card is not None:
            check_skill(skill, card)
        metadata = {SKILL_KEY: skill, **(metadata or {})}
    build = partial(to_message, content, files=files, metadata=message_metadata, **about)
    message = await asyncio.to_thread(build) if _names_files(content, files) else build()
    if skill is not None and named_skill(message, metadata) != skill:
        raise ValueError(f"the metadata names another skill than {skill!r}; give one of them")
    if metadata is not None:
        _check_values([metadata])
    configuration = None
    if (
        accepted_output_modes
        or history_length is not None
        or return_immediately
        or push is not None
    ):
        configuration = SendMessageConfiguration(
            accepted_output_modes=tuple(accepted_output_modes),
            history_length=history_length,
            return_immediately=return_immediately,
            task_push_notification_config=to_config(push) if push is not None else None,
        )
    return SendMessageRequest(message=message, configuration=configuration, metadata=metadata)


def check_skill(skill: str, card: AgentCard) -> None:
    """Reject a skill that is not on the card, unless an extended card may have it.

    Raises ``InvalidParamsError``, as the agent would.
    """
    known = [each.id for each in card.skills]
    if skill not in known and not card.capabilities.extended_agent_card:
        refused = unknown_skill(skill, known)
        refused.is_remote = True
        raise refused


def _names_files(content: Sendable | None, files: Sequence[str | Path | bytes | Part]) -> bool:
    """Return whether there are paths to read, including strings among ``files``."""
    contents = content if isinstance(content, list | tuple) else (content,)
    return any(isinstance(each, Path) for each in contents) or any(
        isinstance(each, Path | str) for each in files
    )


def to_config(push: Push) -> TaskPushNotificationConfig:
    """Return ``push`` as a configuration."""
    return TaskPushNotificationConfig(url=push) if isinstance(push, str) else push
