"""Writes the heads of answers: status lines, checked header fields, the date."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

Field = tuple[bytes, bytes]

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_STATUS_LINES = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()
    for status in range(100, 600)
}
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# All control characters but the tab: the CR and LF of each line are counted.
_CONTROLS = bytes([*range(9), *range(10, 32), 127])
_MAX_NAMES = 1024

_MAX_KNOWN = 128
_MAX_LINES = 1024

_names: dict[bytes, bytes] = {}
_known_lines: dict[tuple[Field, ...], bytes] = {}
_date = (0, b"")


def field_name(name: bytes) -> bytes:
    """Return a name in lower case. Raises ``ValueError`` for one that is none."""
    known = _names.get(name)
    if known is None:
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is no name of a header field")
        known = bytes(name).lower()
        if len(_names) < _MAX_NAMES:
            _names[name] = known
    return known


def response_head(status: int, fields: Iterable[Field]) -> bytes:
    """Return a head, with the date, from fields whose names are in lower case.

    Raises ``ValueError`` for control characters in a value: they could begin another answer.
    """
    return b"%b%b%b\r\n" % (_STATUS_LINES[status], date_line(), _lines(fields))


def whole_response(status: int, fields: tuple[Field, ...], body: bytes) -> bytes:
    """Return an answer with its head, as ``response_head`` returns it, and a Content-Length.

    What most answers have in common is checked and put together once.
    """
    lines = _known_lines.get(fields)
    if lines is None:
        lines = _lines(fields)
        if len(lines) <= _MAX_LINES:
            if len(_known_lines) >= _MAX_KNOWN:
                _known_lines.clear()
            _known_lines[fields] = lines
    return b"%b%bcontent-length: %d\r\n%b\r\n%b" % (
        _STATUS_LINES[status], date_line(), len(body), lines, body
    )  # fmt: skip


def _lines(fields: Iterable[Field]) -> bytes:
    """Return the lines of fields. Raises ``ValueError``."""
    lines = [b"%b: %b\r\n" % field for field in fields]
    block = b"".join(lines)
    if len(block.translate(None, _CONTROLS)) != len(block) - 2 * len(lines):
        raise ValueError("a control character in a header field")
    return block


def date_line() -> bytes:
    """Return the header ``Date``."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = now, b"date: " + formatdate(now, usegmt=True).encode() + b"\r\n"
    return _date[1]
