"""The bytes of a file, for reading and for saving to disk."""

from __future__ import annotations

import asyncio
import itertools
import mimetypes
import os
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Self
from urllib.parse import unquote

import msgspec

from parley.client.errors import FileLimitExceeded
from parley.client.origin import Origin
from parley.model.parts import MAX_READ, Part

# -- saving -----------------------------------------------------------------------------------

BUFFER = 1024 * 1024
"""The number of bytes that are collected before a thread writes them."""

MAX_NAME = 150
_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"|?*\u200e\u200f\u202a-\u202e\u2066-\u2069]')
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?$")


def safe_name(filename: str, media_type: str = "") -> str:
    """Return a safe local file name for a name from outside.

    It is not empty, has no folder and no forbidden character, and is not a hidden file.
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
    """Create an empty file with an unused name in a folder, and return its path.

    If the name is in use, a number is added. Raises ``OSError``.
    """
    for path in numbered_paths(folder, name):
        try:
            path.open("xb").close()
            break
        except FileExistsError:
            continue
    return path


def numbered_paths(folder: Path, name: str) -> Iterator[Path]:
    """Yield the candidate paths for a name in a folder: the name itself, then with numbers."""
    stem, suffix = os.path.splitext(name)
    yield folder / name
    for number in itertools.count(2):
        yield folder / f"{stem} ({number}){suffix}"


async def write_file(path: Path, chunks: AsyncIterator[bytes]) -> Path:
    """Write chunks to a file, and return its path.

    They are written to a temporary file next to it, which replaces it at the end and is removed on
    failure. Raises ``OSError``.
    """
    temporary = path.with_name(f".{path.name[:MAX_NAME]}.{secrets.token_hex(4)}.part")
    try:
        # Not opened in a thread: if the call were cancelled meanwhile, the file would be left
        # behind.
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


# -- stream -----------------------------------------------------------------------------------

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes so far, and the total if it is known."""


Chunks = AsyncGenerator[bytes, None]
"""The bytes of a file in chunks."""


class FileFacts(msgspec.Struct):
    """Facts about a file, updated while it is read."""

    filename: str = ""
    media_type: str = ""
    size: int | None = None


class FileStream:
    """The bytes of a file: an async iterator of chunks, and an async context manager.

    After a broken connection it continues at the same position. The whole file is checked after the
    last chunk: if that raises ``FileMismatch``, do not use the chunks. If you leave the loop early,
    do so inside ``async with``, which closes the connection.
    """

    def __init__(self, chunks: Chunks, facts: FileFacts, url: str = "") -> None:
        self._chunks = chunks
        self._facts = facts
        self._url = url
        self._first: bytes | None = None

    @property
    def filename(self) -> str:
        """The sender's name for the file. It is not safe as a path."""
        return self._facts.filename

    @property
    def media_type(self) -> str:
        """The media type of the file."""
        return self._facts.media_type

    @property
    def size(self) -> int | None:
        """The number of bytes, if known; inside ``async with`` the server has been asked."""
        return self._facts.size

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._first is not None:
            chunk, self._first = self._first, None
            return chunk
        return await anext(self._chunks)

    async def __aenter__(self) -> Self:
        self._first = await anext(self._chunks, None)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading and close the connection. Idempotent."""
        await self._chunks.aclose()

    async def read(self, *, limit: int = MAX_READ) -> bytes:
        """Return all bytes.

        Raises ``FileLimitExceeded`` as soon as there are more than ``limit``.
        """
        pieces: list[bytes] = []
        size = 0
        async with self:
            self._check(self.size or 0, limit)
            async for chunk in self:
                size += len(chunk)
                self._check(size, limit)
                pieces.append(chunk)
        return b"".join(pieces)

    def _check(self, size: int, limit: int) -> None:
        if size > limit:
            raise FileLimitExceeded(
                f"{self.filename[:100] or 'the file'} has more than {limit:,} bytes, the limit of "
                "read() for memory; read it in chunks with open(), write it to disk, or "
                "give read() a larger limit"
            )

    async def save(self, path: str | Path) -> Path:
        """Write the bytes to a file, and return its path.

        The file appears when it is complete, and replaces an existing one. If ``path`` is a folder,
        the file gets the sender's name, made safe, with a number if the name is in use.
        """
        path = Path(path)
        async with self:
            if not await asyncio.to_thread(path.is_dir):
                return await write_file(path, self)
            name = safe_name(self.filename or _last_segment(self._url), self.media_type)
            path = free_path(path, name)
            try:
                return await write_file(path, self)
            except BaseException:
                path.unlink(missing_ok=True)
                raise


async def in_memory(content: bytes, chunk: int = 64 * 1024) -> AsyncGenerator[bytes, None]:
    """Yield bytes in memory in chunks."""
    for begin in range(0, len(content), chunk):
        yield content[begin : begin + chunk]


def open_part(part: Part, fetch: Callable[[str, FileFacts], Chunks]) -> FileStream:
    """Return the bytes of a file part as a stream; ``fetch`` yields the bytes at an address.

    Raises ``ValueError`` for a part that is not a file, or whose address is not HTTP.
    """
    facts = FileFacts(part.filename, part.media_type)
    if part.raw is not None:
        facts.size = len(part.raw)
        return FileStream(in_memory(part.raw), facts)
    if part.url is None:
        kind = "text" if part.text is not None else "data"
        raise ValueError(f"this part is {kind} and no file; its content is part.{kind}")
    try:
        Origin.of(part.url)
    except ValueError as error:
        raise ValueError(f"the file's address is {part.url[:200]!r}; expected {error}") from None
    return FileStream(fetch(part.url, facts), facts, part.url)


def _last_segment(url: str) -> str:
    return unquote(url.partition("?")[0].partition("#")[0].rpartition("/")[2])
