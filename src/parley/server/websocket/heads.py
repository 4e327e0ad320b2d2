"""Heads of the HTTP answers to handshakes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


def checked(headers: Iterable[Any]) -> list[tuple[bytes, bytes]]:
    """Return headers of the app. Raises ``RuntimeError`` for what is none."""
    found = [(bytes(name).lower(), bytes(value)) for name, value in headers]
    for name, value in found:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise RuntimeError(f"{name!r} is no header with this value, or none at all")
        if name.startswith(b"sec-websocket-") and name != b"sec-websocket-version":
            raise RuntimeError(f"{name.decode()} is the server's own header")
    return found


def head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the head of an answer."""
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, phrase.encode())]
    lines += [b"%b: %b\r\n" % header for header in headers]
    return b"".join(lines) + b"\r\n"
