"""Bytes that come over a connection, in whatever pieces."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator

from tests.server.connection.corpus import BEHIND, RIGHT, SMUGGLED, STRICTER
from tests.server.connection.wire import answers, said

_LONGEST = 20_000


def connections(data: bytes) -> None:
    """Data is read alike in one piece and in several, and answered in whole answers.

    An answer that refuses is the last one. What has several faults is refused for the one that is
    seen first, which depends on what has come.
    """
    data = data[:_LONGEST]
    size = zlib.crc32(data) % 97 + 1
    pieces = [data[at : at + size] for at in range(0, len(data), size)]

    async def both() -> tuple[tuple[bytes, bool], tuple[bytes, bool]]:
        return await said([data] if data else []), await said(pieces)

    (whole, has_ended), (parted, _) = asyncio.run(both())
    if b"HEAD " in data:
        return  # whose answers have the length of what they leave out
    if b"100-continue" not in data.lower():
        assert read(whole) == read(parted), (whole, parted)
    statuses = [status for status, _ in answers(whole) if status != 100]
    refused = [n for n, status in enumerate(statuses) if status >= 400]
    assert not refused or (refused == [len(statuses) - 1] and has_ended), whole


def read(written: bytes) -> list[tuple[int, bytes]]:
    """Return the answers of a connection, with one status for all refusals."""
    return [(400, b"") if status >= 400 else (status, body) for status, body in answers(written)]


def connection_seeds() -> Iterator[bytes]:
    """Right requests and smuggled ones, with another behind."""
    for each in (RIGHT, SMUGGLED, STRICTER):
        for data in each.values():
            yield data + BEHIND
