"""A message from the command line, with its parts in the order of the flags."""

from __future__ import annotations

import json
import mimetypes
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from parley.cli.output.failures import UsageFailure
from parley.model.parts import Message, Part, Role

MAX_FILE = 7 * 1024 * 1024  # in base64 under the 10 MiB limit of common servers
OCTETS = "application/octet-stream"


class Draft(NamedTuple):
    """A message, and where its files are on this machine, by the index of their part.

    A file that is too large for a message is not read: the URL of its part is that of the file
    here, until it is uploaded.
    """

    message: Message
    files: dict[int, Path]


class Flag(NamedTuple):
    """One of ``text``, ``file``, ``data`` and ``media_type``, with its value."""

    name: str
    value: str


def build_message(
    flags: Sequence[Flag],
    *,
    text: str = "",
    context_id: str | None,
    task_id: str | None,
    read_stdin: Callable[[], bytes] | None = None,
) -> Draft:
    """Return the message that ``flags`` describe, after ``text``.

    The message id is new; the other ids are the caller's.

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


def _with_media_types(flags: Sequence[Flag]) -> list[tuple[Flag, str]]:
    """Return each part with the media type that follows it, or with none."""
    parts: list[tuple[Flag, str]] = []
    for flag in flags:
        if flag.name != "media_type":
            parts.append((flag, ""))
        elif not parts:
            raise UsageFailure(
                "--media-type belongs to the part before it, and there is none",
                hint="write it after --text, --file or --data: "
                "--file report.bin --media-type application/pdf",
            )
        elif parts[-1][1]:
            raise UsageFailure(
                f"--{parts[-1][0].name} {parts[-1][0].value} has two media types; give it one"
            )
        elif flag.value.count("/") != 1 or not all(flag.value.strip().split("/")):
            raise UsageFailure(
                f"--media-type: {flag.value!r} is not a media type such as application/pdf"
            )
        else:
            parts[-1] = (parts[-1][0], flag.value.strip())
    return parts


def _part(flag: Flag, media_type: str, read_stdin: Callable[[], bytes]) -> Part:
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
            "--data names a file of JSON, or - for standard input, and this is the JSON itself",
            hint="pipe it: echo '{...}' | parley send --data - (a skill with typed input reads "
            "it as the text too, without --data)",
        )
    content = read_stdin() if location == "-" else _read(Path(location), "--data")
    if len(content) > MAX_FILE:
        raise UsageFailure(
            f"--data: {location} is too large; a message carries at most {MAX_FILE:,} bytes",
            hint="send it as a file: --file",
        )
    try:
        value = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        where = "standard input" if location == "-" else location
        raise UsageFailure(f"--data: {where} is not JSON: {error}") from None
    return Part(data=value, media_type=media_type)


def _read(path: Path, flag: str) -> bytes:
    """Return the bytes of a file, one more than a message carries at most."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE + 1)
    except OSError as error:
        raise UsageFailure(f"{flag}: {path} cannot be read: {error.strerror}") from None


def _guess(name: str) -> str:
    return mimetypes.guess_type(name)[0] or (OCTETS if name else "")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
