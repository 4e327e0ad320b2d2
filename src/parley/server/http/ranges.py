"""Ranges and validators of a request for a file (RFC 9110 §13 and §14). Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_RANGE = re.compile(rb"bytes=[ \t]*(\d{0,18})-(\d{0,18})[ \t]*")
_ETAG = re.compile(rb'(?:W/)?"[^"]*"')


class ByteRange(NamedTuple):
    """The bytes from ``start`` up to ``end`` of a file."""

    start: int
    end: int


class Unsatisfiable(Exception):
    """The file has none of the bytes that were asked for."""


def range_of(headers: Mapping[bytes, bytes], size: int, etag: bytes) -> ByteRange | None:
    """Return the range that a GET asks for, ``None`` for the whole file.

    Several ranges, a malformed one, and one for another version of the file (``If-Range``) are
    answered with the whole file. Raises ``Unsatisfiable``.
    """
    match = _RANGE.fullmatch(headers.get(b"range", b"").strip())
    if match is None or headers.get(b"if-range", etag).strip() != etag:
        return None
    first, last = match.groups()
    if not first:
        if not last:
            return None
        start, end = max(size - int(last), 0), size
    else:
        start = int(first)
        end = min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    if start >= end:
        raise Unsatisfiable
    return ByteRange(start, end)


def is_unchanged(headers: Mapping[bytes, bytes], etag: bytes) -> bool:
    """Return whether the client has this version (``If-None-Match``)."""
    known = headers.get(b"if-none-match")
    return known is not None and _names(known, etag, weak=True)


def is_other(headers: Mapping[bytes, bytes], etag: bytes) -> bool:
    """Return whether the client wants another version only (``If-Match``)."""
    wanted = headers.get(b"if-match")
    return wanted is not None and not _names(wanted, etag, weak=False)


def _names(tags: bytes, etag: bytes, *, weak: bool) -> bool:
    if tags.strip() == b"*":
        return True
    found = _ETAG.findall(tags)
    return etag in ([tag.removeprefix(b"W/") for tag in found] if weak else found)
