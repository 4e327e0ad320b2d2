"""Files of a message and of its answer: uploaded before it is sent, saved when it has come."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Iterator
from pathlib import Path

import msgspec

from parley.cli.calls.agent_call import AgentCall
from parley.cli.messages import MAX_FILE, Draft
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.client import RemoteAgent
from parley.client.calls.stream_reader import new_output
from parley.client.files.stream import numbered_paths, safe_name
from parley.model.extensions import FILE_TRANSFER
from parley.model.parts import Artifact, Message, Part
from parley.model.struct import encode
from parley.model.tasks import Task


async def upload_files(call: AgentCall, agent: RemoteAgent, draft: Draft) -> Message:
    """Return the message, with references in place of files that the agent wants by reference.

    Raises ``UsageFailure`` for a file that is too large for a message, if the agent takes no
    others.
    """
    parts = list(draft.message.parts)
    inline_bytes = agent.inline_bytes
    for index, path in draft.files.items():
        raw = parts[index].raw
        if inline_bytes is None and raw is None:
            raise UsageFailure(
                f"--file: {path} is too large; a message carries at most {MAX_FILE:,} bytes, and "
                f"the agent declares no file transfer ({FILE_TRANSFER})",
                hint="put the file where the agent can fetch it, and give its URL: "
                "--file https://...",
            )
        if inline_bytes is not None and (raw is None or len(raw) > inline_bytes):
            parts[index] = await _upload(call, agent, path, parts[index])
    return msgspec.structs.replace(draft.message, parts=tuple(parts))


async def _upload(call: AgentCall, agent: RemoteAgent, path: Path, part: Part) -> Part:
    try:
        call.output.note(f"uploading {_described(path)}")
        return await agent.upload(path, filename=part.filename, media_type=part.media_type)
    except OSError as error:
        raise UsageFailure(f"--file: {path} cannot be read: {error.strerror}") from None


async def save_files(
    call: AgentCall, agent: RemoteAgent, answer: Task | Message, folder: Path | None
) -> None:
    """Save the files of an answer in a folder, if there is one, and say where.

    Of a task that a message continued, only what is new is saved.
    """
    if folder is None:
        return
    if isinstance(answer, Task) and call.before is not None:
        answer = new_output(call.before, answer)
    try:
        paths = await agent.download(answer, folder)
    except OSError as error:
        raise CommandFailure(
            "A2ACLI_ERR_INTERNAL", f"--save: {folder} cannot be written: {error.strerror}"
        ) from None
    for path in paths:
        call.output.note(f"saved {_described(path)}")
    if not paths:
        call.output.note("the answer has no file to save")


async def save_artifacts(
    call: AgentCall, agent: RemoteAgent, task: Task, folder: Path, *, overwrite: bool
) -> list[Path]:
    """Save the artifacts of a task in a folder, texts and data as files too; return the paths.

    No file is replaced without ``overwrite``, and none that was saved by the same call.
    """
    saved: list[Path] = []
    try:
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        for part in [each for artifact in task.artifacts for each in _as_files(artifact)]:
            paths = numbered_paths(folder, safe_name(part.filename, part.media_type))
            path = next(each for each in paths if each not in saved) if overwrite else folder
            saved.append(await agent.download(part, path))
    except OSError as error:
        raise CommandFailure(
            "A2ACLI_ERR_INTERNAL", f"{folder} cannot be written: {error.strerror}"
        ) from None
    if not saved:
        call.output.note("the task has no artifact to save")
    return saved


def _as_files(artifact: Artifact) -> Iterator[Part]:
    """Yield the parts of an artifact as files; texts that follow each other are one file."""
    pieces: list[Part] = []
    for part in artifact.parts:
        if part.text is not None and pieces and _continues(pieces[-1], part):
            whole = (pieces.pop().text or "") + part.text
            part = msgspec.structs.replace(part, text=whole)
        pieces.append(part)
    for part in pieces:
        if part.is_file:
            yield part
            continue
        is_text = part.text is not None
        media_type = part.media_type or ("text/plain" if is_text else "application/json")
        name = part.filename or artifact.name or artifact.artifact_id
        suffix = "" if Path(name).suffix else mimetypes.guess_extension(media_type) or ""
        content = (part.text or "").encode() if is_text else encode(part.data)
        yield Part(raw=content, filename=name + suffix, media_type=media_type)


def _continues(before: Part, part: Part) -> bool:
    same = (before.media_type, before.filename) == (part.media_type, part.filename)
    return before.text is not None and same


def _described(path: Path) -> str:
    return f"{path} ({path.stat().st_size:,} bytes)"
