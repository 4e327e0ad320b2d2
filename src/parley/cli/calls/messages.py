"""A message from the command line, with its parts in the order of the flags, and its files.

Files are uploaded before the message is sent; files of its answer are saved afterwards.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import msgspec

from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.settings.options import PartFlag
from parley.client import RemoteAgent
from parley.client.calls.stream_reader import new_output
from parley.client.files.stream import numbered_paths, safe_name
from parley.model.extensions import FILE_TRANSFER
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.struct import encode
from parley.model.tasks import Task

MAX_FILE = 7 * 1024 * 1024  # in base64 under the 10 MiB limit of common servers
OCTETS = "application/octet-stream"


class Draft(NamedTuple):
    """A message, and the paths of its files on this machine, by the index of their part.

    A file that is too large for a message is not read: until it is uploaded, the URL of its part is
    the local file.
    """

    message: Message
    files: dict[int, Path]


def build_message(
    flags: Sequence[PartFlag],
    *,
    text: str = "",
    context_id: str | None,
    task_id: str | None,
    read_stdin: Callable[[], bytes] | None = None,
) -> Draft:
    """Return the message from ``flags``, after ``text``.

    The message id is new; the other ids come from the user.

    Raises ``UsageFailure`` for a media type without a part, a file that is unreadable, data that is
    too large or not JSON, and a message without any part.
    """
    parts = [Part(text=_well_formed(text))] if text else []
    files: dict[int, Path] = {}
    for flag, media_type in _with_media_types(flags):
        if flag.name == "file" and not _is_url(flag.value):
            files[len(parts)] = Path(flag.value)
        parts.append(_part(flag, media_type, read_stdin or sys.stdin.buffer.read))
    if not parts:
        raise UsageFailure(
            "the message is empty",
            hint='give a text, as in parley send "What time is it?", or --text, --file or --data',
        )
    message = Message(
        message_id=str(uuid4()),
        role=Role.USER,
        parts=tuple(parts),
        context_id=context_id or "",
        task_id=task_id or "",
    )
    return Draft(message, files)


def _with_media_types(flags: Sequence[PartFlag]) -> list[tuple[PartFlag, str]]:
    """Return each part with the media type that follows it, or with none."""
    parts: list[tuple[PartFlag, str]] = []
    for flag in flags:
        if flag.name != "media_type":
            parts.append((flag, ""))
        elif not parts:
            raise UsageFailure(
                "--media-type must follow a part, and there is none before it",
                hint="write it after --text, --file or --data: "
                "--file report.bin --media-type application/pdf",
            )
        elif parts[-1][1]:
            raise UsageFailure(
                f"--{parts[-1][0].name} {parts[-1][0].value} has two media types; give only one"
            )
        elif flag.value.count("/") != 1 or not all(flag.value.strip().split("/")):
            raise UsageFailure(
                f"--media-type: {flag.value!r} is not a media type such as application/pdf"
            )
        else:
            parts[-1] = (parts[-1][0], flag.value.strip())
    return parts


def _part(flag: PartFlag, media_type: str, read_stdin: Callable[[], bytes]) -> Part:
    match flag.name:
        case "text":
            return Part(text=_well_formed(flag.value), media_type=media_type)
        case "data":
            return _data(flag.value, media_type, read_stdin)
        case _:
            return _file(flag.value, media_type)


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageFailure("the text is not valid UTF-8", hint="send it with --file") from None
    return text


def _is_url(location: str) -> bool:
    parts = urlsplit(location)
    return parts.scheme in {"http", "https"} and bool(parts.netloc)


def _file(location: str, media_type: str) -> Part:
    if _is_url(location):
        name = unquote(urlsplit(location).path.rpartition("/")[2])
        return Part(url=location, filename=name, media_type=media_type or _guess(name))
    path = Path(location)
    media_type = media_type or _guess(path.name)
    content = _read(path, "--file")
    if len(content) > MAX_FILE:
        return Part(url=path.absolute().as_uri(), filename=path.name, media_type=media_type)
    return Part(raw=content, filename=path.name, media_type=media_type)


def _data(location: str, media_type: str, read_stdin: Callable[[], bytes]) -> Part:
    if location.lstrip().startswith(("{", "[")) and not Path(location).exists():
        raise UsageFailure(
            "--data takes a JSON file, or - for standard input, not the JSON itself",
            hint="pipe it: echo '{...}' | parley send --data - (a skill with typed input reads "
            "it as the text too, without --data)",
        )
    content = read_stdin() if location == "-" else _read(Path(location), "--data")
    if len(content) > MAX_FILE:
        raise UsageFailure(
            f"--data: {location} is too large; a message can contain at most {MAX_FILE:,} bytes",
            hint="send it as a file: --file",
        )
    try:
        value = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        where = "standard input" if location == "-" else location
        raise UsageFailure(f"--data: {where} is not JSON: {error}") from None
    return Part(data=value, media_type=media_type)


def _read(path: Path, flag: str) -> bytes:
    """Return the bytes of a file, at most one more than a message can contain."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE + 1)
    except OSError as error:
        raise UsageFailure(f"{flag}: {path} cannot be read: {error.strerror}") from None


def _guess(name: str) -> str:
    return mimetypes.guess_type(name)[0] or (OCTETS if name else "")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


async def upload_files(call: AgentCall, agent: RemoteAgent, draft: Draft) -> Message:
    """Return the message with uploaded files replaced by references, for files the agent wants that
    way.

    Raises ``UsageFailure`` for a file that is too large for a message, if the agent supports no
    upload.
    """
    parts = list(draft.message.parts)
    inline_bytes = agent.inline_bytes
    for index, path in draft.files.items():
        raw = parts[index].raw
        if inline_bytes is None and raw is None:
            raise UsageFailure(
                f"--file: {path} is too large; a message can contain at most {MAX_FILE:,} bytes, "
                "and "
                f"the agent declares no file transfer ({FILE_TRANSFER})",
                hint="make the file available to the agent, and give its URL: --file https://...",
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
    """Save the files of an answer in a folder, if given, and print their paths.

    Of a continued task, only new files are saved.
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
        call.output.note("the answer has no files to save")


async def save_artifacts(
    call: AgentCall, agent: RemoteAgent, task: Task, folder: Path, *, overwrite: bool
) -> list[Path]:
    """Save the artifacts of a task in a folder, texts and data as files too; return the paths.

    Without ``overwrite`` no existing file is replaced; a file of the same call never is.
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
        call.output.note("the task has no artifacts to save")
    return saved


def _as_files(artifact: Artifact) -> Iterator[Part]:
    """Yield the parts of an artifact as files; adjacent texts become one file."""
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
