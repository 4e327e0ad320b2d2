"""HTTP/1.1 messages as a proxy needs them: a head, and a body however it is framed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024


class Malformed(Exception):
    """Bytes that are no HTTP/1.1 message."""


class MessageHead(NamedTuple):
    """The first line and the headers, in order, names as they came."""

    line: str
    headers: list[tuple[str, str]]

    def value(self, name: str) -> str:
        """Return a header's value, empty if there is none."""
        return next((value for known, value in self.headers if known.lower() == name), "")

    def replaced(self, *without: str, **added: str) -> MessageHead:
        """Return the head without some headers, and with others (``_`` stands for ``-``)."""
        new = {name.replace("_", "-"): value for name, value in added.items()}
        gone = {name.lower() for name in (*without, *new)}
        kept = [(name, value) for name, value in self.headers if name.lower() not in gone]
        return MessageHead(self.line, [*kept, *new.items()])

    def encode(self) -> bytes:
        """Return the bytes."""
        lines = [self.line, *(f"{name}: {value}" for name, value in self.headers)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> MessageHead | None:
    """Read a head; ``None`` where the connection ends instead. Raises ``Malformed``."""
    try:
        data = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Malformed("the head of a message broke off") from None
        return None
    except asyncio.LimitOverrunError:
        raise Malformed(f"the head of a message is larger than {MAX_HEAD:,} bytes") from None
    line, *lines = data.decode("latin-1")[:-4].split("\r\n")
    headers = []
    for each in lines:
        name, colon, value = each.partition(":")
        if not colon:
            raise Malformed(f"{each[:60]!r} is no header")
        headers.append((name.strip(), value.strip()))
    return MessageHead(line, headers)


async def read_body(
    reader: asyncio.StreamReader, head: MessageHead, *, to_end: bool
) -> AsyncIterator[bytes]:
    """Yield a body. Without a length it is empty, or (``to_end``) lasts as the connection does."""
    if "chunked" in head.value("transfer-encoding").lower():
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            if size > MAX_BODY:
                raise Malformed(f"a chunk is larger than {MAX_BODY:,} bytes")
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
        return
    length = head.value("content-length")
    if not length and not to_end:
        return
    left = int(length) if length else None
    while left is None or left:
        data = await reader.read(65536 if left is None else min(left, 65536))
        if not data:
            if left:
                raise asyncio.IncompleteReadError(b"", left)
            return
        if left is not None:
            left -= len(data)
        yield data


async def whole_body(reader: asyncio.StreamReader, head: MessageHead) -> bytes:
    """Return the body of a request. Raises ``Malformed`` for one that is too large."""
    pieces, size = [], 0
    async for piece in read_body(reader, head, to_end=False):
        size += len(piece)
        if size > MAX_BODY:
            raise Malformed(f"a request is larger than {MAX_BODY:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)


class FrameSplitter:
    """Cuts the bytes of a stream into frames, each with its closing empty line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the frames that a chunk completes."""
        self._rest += chunk
        frames: list[bytes] = []
        while True:
            ends = [
                (at + len(end))
                for end in (b"\n\n", b"\r\n\r\n", b"\r\r")
                if (at := self._rest.find(end)) >= 0
            ]
            if not ends:
                return frames
            frames.append(self._rest[: min(ends)])
            self._rest = self._rest[min(ends) :]

    @property
    def rest(self) -> bytes:
        """What has no end yet."""
        return self._rest


def has_data(frame: bytes) -> bool:
    """Return whether a frame is an event, and no comment."""
    lines = frame.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return any(line.startswith(b"data") for line in lines)
