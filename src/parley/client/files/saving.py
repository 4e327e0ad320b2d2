"""Write files to disk: under safe names, whole or not at all."""

from __future__ import annotations

import asyncio
import itertools
import mimetypes
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

BUFFER = 1024 * 1024
"""The bytes that are collected before a thread writes them."""

MAX_NAME = 150
_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"|?*\u200e\u200f\u202a-\u202e\u2066-\u2069]')
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?$")


def safe_name(filename: str, media_type: str = "") -> str:
    """Return a safe name for a file on this machine, from a name that comes from outside.

    It is not empty, has no folder and no character that a system refuses, and is no hidden file.
    """
    name = re.split(r"[/\\]", filename)[-1]
    name = _UNSAFE.sub("_", name).lstrip(".~ ").rstrip(". ")
    name = name.encode("utf-8", "replace").decode()
    if not name:
        kind = media_type.partition(";")[0].strip().lower()
        return f"file{mimetypes.guess_extension(kind) or ''}"
    if _DEVICES.match(name):
        name = f"_{name}"
    stem, dot, suffix = name.rpartition(".")
    if len(name) > MAX_NAME:
        keep = f".{suffix}" if dot and len(suffix) < 20 else ""
        name = (stem if keep else name)[: MAX_NAME - len(keep)] + keep
    return name


def free_path(folder: Path, name: str) -> Path:
    """Return a path in a folder where nothing is yet, and leave an empty file there.

    A second file of a name gets a number. Raises ``OSError``.
    """
    for path in numbered_paths(folder, name):
        try:
            path.open("xb").close()
            break
        except FileExistsError:
            continue
    return path


def numbered_paths(folder: Path, name: str) -> Iterator[Path]:
    """Yield the paths for files of one name in a folder: the name itself, then with a number."""
    stem, suffix = os.path.splitext(name)
    yield folder / name
    for number in itertools.count(2):
        yield folder / f"{stem} ({number}){suffix}"


async def write_file(path: Path, chunks: AsyncIterator[bytes]) -> Path:
    """Write chunks to a file, and return its path.

    They go to a new file beside it, which takes its place at the end and is removed on failure.
    Raises ``OSError``.
    """
    temporary = path.with_name(f".{path.name[:MAX_NAME]}.{secrets.token_hex(4)}.part")
    try:
        # Not in a thread: a call that is cancelled while a thread opens it would leave it there.
        with temporary.open("xb") as file:
            await _write(file, chunks)
        await asyncio.to_thread(os.replace, temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


async def _write(file: BinaryIO, chunks: AsyncIterator[bytes]) -> None:
    pending: list[bytes] = []
    size = 0
    async for chunk in chunks:
        pending.append(chunk)
        size += len(chunk)
        if size >= BUFFER:
            await asyncio.to_thread(file.writelines, pending)
            pending, size = [], 0
    await asyncio.to_thread(file.writelines, pending)
    await asyncio.to_thread(file.flush)
