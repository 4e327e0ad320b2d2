"""What callers upload: bytes, paths, open files and iterators, read in pieces."""

from __future__ import annotations

import asyncio
import hashlib
import io
import mimetypes
import os
import stat
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from parley.model.errors import an

PIECE = 4 * 1024 * 1024
"""The bytes that are held in memory, and sent again after a broken connection."""

OCTETS = "application/octet-stream"

Uploadable = str | Path | bytes | BinaryIO | AsyncIterable[bytes] | Iterable[bytes]
"""A path (also as a string), bytes, an open binary file, or an iterator of bytes."""

_END: Any = object()


class Content(msgspec.Struct, frozen=True):
    """A file to send: its bytes in pieces, its name and type, and what is known of the whole."""

    pieces: AsyncIterator[bytes]
    filename: str
    media_type: str
    size: int | None = None
    sha256: str = ""


async def content_of(given: Uploadable, *, filename: str = "", media_type: str = "") -> Content:
    """Return what a caller gives as content to send. Reads nothing of an iterator yet.

    Raises ``OSError`` for a file that cannot be read, ``TypeError`` for anything else.
    """
    size, digest = None, ""
    if isinstance(given, str | Path):
        path = Path(given)
        filename = filename or path.name
        size, digest = await asyncio.to_thread(_measure_path, path)
        pieces = _of_path(path)
    elif isinstance(given, bytes | bytearray | memoryview):
        whole = bytes(given)
        size = len(whole)
        digest = await asyncio.to_thread(lambda: hashlib.sha256(whole).hexdigest())
        pieces = _of_bytes(whole)
    elif hasattr(given, "read"):
        file = cast("BinaryIO", given)
        filename = filename or _name_of(file)
        size, digest = await asyncio.to_thread(_measure_file, file)
        pieces = _of_file(file)
    elif isinstance(given, AsyncIterable):
        pieces = _regrouped(given)
    elif isinstance(given, Iterable):
        pieces = _regrouped(_in_thread(iter(given)))
    else:
        raise TypeError(
            f"{an(type(given).__name__)} cannot be uploaded; use a path, bytes, a file open "
            "for reading in binary, or an iterator of bytes"
        )
    return Content(pieces, filename, media_type or guess_type(filename), size, digest)


def guess_type(filename: str) -> str:
    """Return the media type of a name's suffix."""
    return mimetypes.guess_type(filename)[0] or OCTETS


def _measure_path(path: Path) -> tuple[int | None, str]:
    """Return the size and the digest of a file. A pipe or a device is not measured."""
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return None, ""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return size, hashlib.file_digest(file, "sha256").hexdigest()


def _measure_file(file: BinaryIO) -> tuple[int | None, str]:
    """Return what is left of an open file. One that cannot go back is not measured."""
    try:
        if not file.seekable():
            return None, ""
        begin = file.tell()
        hashed = hashlib.sha256()
        size = 0
        while block := _bytes_only(file.read(PIECE)):
            hashed.update(block)
            size += len(block)
        file.seek(begin)
    except (AttributeError, io.UnsupportedOperation):
        return None, ""
    return size, hashed.hexdigest()


def _name_of(file: BinaryIO) -> str:
    name = getattr(file, "name", "")
    return Path(name).name if isinstance(name, str) and not name.startswith("<") else ""


async def _of_bytes(whole: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(whole), PIECE):
        yield whole[begin : begin + PIECE]


async def _of_path(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        async for piece in _of_file(file):
            yield piece
    finally:
        file.close()


async def _of_file(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := _bytes_only(await asyncio.to_thread(file.read, PIECE)):
        yield piece


async def _in_thread(items: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (item := await asyncio.to_thread(next, items, _END)) is not _END:
        yield item


async def _regrouped(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes in pieces of a useful size."""
    pending = bytearray()
    async for chunk in chunks:
        pending += _bytes_only(chunk)
        while len(pending) >= PIECE:
            yield bytes(pending[:PIECE])
            del pending[:PIECE]
    if pending:
        yield bytes(pending)


def _bytes_only(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            f"a file is made of bytes, not of {type(value).__name__}: open it with mode 'rb'"
        )
    return bytes(value)
