"""The ``text`` format: ``Label: value`` lines and blocks, safe to read, to pipe and to parse.

A field is one line. Longer content is a block: its label alone on a line, the content, and an empty
line that closes it. An empty line inside the content becomes one space, so that a reader can skip a
whole block. Untrusted text cannot move the cursor or change the reading order: such characters are
escaped (command-line specification, §11.2). This module defines these characters, for text and for
JSON; ``streams`` writes nothing without it.
"""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

_LENGTHS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def format_age(ms: int) -> str:
    """Return an age in one or two units: 3d 4h, 12s."""
    left, words = max(0, ms) // 1000, []
    for unit, length in _LENGTHS:
        if left >= length:
            words.append(f"{left // length}{unit}")
            left %= length
    return " ".join(words[:2]) or "0s"


# Escaped: all terminal controls, and characters that make a text look different from its content:
# in another order, on another line, or with an invisible part. Not escaped: joiners and variation
# selectors after characters that have variants: emoji, and letters of non-European scripts.
_UNSAFE = re.compile(
    "["
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    r"\u2028\u2029"  # line and paragraph separator
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, overrides, isolates of direction
    r"\u200b\ufeff\xad\u034f\u180e\u2060-\u2065"  # spaces without width, hints, operators
    r"\u115f\u1160\u17b4\u17b5\u3164\uffa0\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # fillers
    r"\u206a-\u206f\ufff0-\ufffb\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"  # shapes, tags
    r"\ud800-\udfff"  # halves of characters
    "]"
    r"|(?<![\u0590-\u1cff\u2190-\u2bff\u2c80-\ua63f\ua800-\ufeff\U00010000-\U0001ffff])"
    r"[\u200c\u200d]"
    r"|(?<![#*0-9\xa9\xae\u2030-\u2bff\u3030-\u3299\U0001f000-\U0001ffff])[\ufe0e\ufe0f]"
    r"|(?<![\u1000-\u109f\u1800-\u18af\u2200-\u2aff\u3400-\ua877\uff01-\uffee])"
    r"[\ufe00-\ufe0d\u180b-\u180d\u180f]"
    r"|(?<![\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])[\U000e0100-\U000e01ef]"
)
_LINE_ENDS = re.compile(r"\r\n?")


def visible(text: str) -> str:
    """Return ``text`` with unsafe characters escaped; tabs and line ends stay. Idempotent.

    A carriage return is a line end, with or without a line feed.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_escaped, _LINE_ENDS.sub("\n", text))


def _escaped(match: re.Match[str]) -> str:
    number = ord(match.group())
    if number > 0xFFFF:
        return f"\\U{number:08x}"
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def visible_json(document: str) -> str:
    """Return a JSON document with unsafe characters as JSON escapes; its value is the same.

    JSON has such characters only inside strings, and never after a backslash.
    """
    if document.isascii() and document.isprintable():
        return document
    return _UNSAFE.sub(lambda match: json.dumps(match.group())[1:-1], document)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return ``value`` as readable JSON, at any depth that the client can receive."""
    encoded = msgspec.json.encode(value)
    return visible_json(msgspec.json.format(encoded, indent=indent or 0).decode())


def shell_words(words: list[str]) -> str:
    """Return a command line to copy: its words quoted, on one line.

    A word with unprintable characters is quoted as ``$'...'``, as in shells.
    """
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if word.isprintable() and word == one_line(word):
        return shlex.quote(word)
    written = (c if c.isprintable() and c not in " \\'" else f"\\U{ord(c):08x}" for c in word)
    return f"$'{''.join(written)}'"


def one_line(text: str) -> str:
    """Return ``text`` on one line, with its white space folded."""
    return visible(" ".join(text.split()))


def aligned(lines: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Return lines of cells as columns, of which the first ``left`` are aligned at the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def cell(text: str, width: int) -> str:
    """Return ``text`` on one line in exactly ``width`` columns of a terminal."""
    text, shown, used = one_line(text), "", 0
    for each in text:
        used += _columns(each)
        if used >= width and (used > width or _columns(text[len(shown) + 1 :])):
            break
        shown += each
    mark = "" if len(shown) == len(text) else "…"
    return shown + mark + " " * (width - _columns(shown + mark))


def _columns(text: str) -> int:
    """Return the number of a terminal's columns for a text without control characters."""
    wide = sum([unicodedata.east_asian_width(each) in "WF" for each in text])
    return len(text) + wide - sum([unicodedata.category(each) in ("Mn", "Me") for each in text])


DIM, PLAIN = "\x1b[2m", "\x1b[22m"
"""The escape sequences that dim a terminal's text, and end dimming."""


class TextWriter:
    """Writes fields and blocks. An open block may grow; any other output closes it.

    With ``dims``, output marked ``dim`` is dimmed, as on a terminal.
    """

    def __init__(self, write: Callable[[str], object], *, dims: bool = False) -> None:
        self._write = write
        self._dims = dims
        self._is_dim = False
        self._open = ""
        self._at_line_start = True
        self._pending_return = False
        self._before = ""

    @property
    def open_block(self) -> str:
        """The key of the open block, or an empty string."""
        return self._open

    def field(self, label: str, value: object, *, dim: bool = False) -> None:
        """Write one field."""
        self.close()
        line = f"{one_line(label)}: {one_line(str(value))}"
        self._write(f"{DIM}{line}{PLAIN}\n" if dim and self._dims else f"{line}\n")

    def content(self, label: str, text: str) -> None:
        """Write a field for a text of one line, else a block."""
        line = text.removesuffix("\n")
        if line and "\n" not in line and "\r" not in line:
            self.close()
            self._write(f"{label}: {visible(line)}\n")
        else:
            self.block(label, text)

    def block(self, label: str, text: str) -> None:
        """Write one block."""
        self.begin(label)
        self.more(text)
        self.close()

    def begin(self, label: str, key: str = "block", *, dim: bool = False) -> None:
        """Open a block for ``more``."""
        self.close()
        self._is_dim = dim and self._dims
        self._write(f"{DIM}{label}:{PLAIN}\n" if self._is_dim else f"{label}:\n")
        self._open, self._at_line_start, self._before = key, True, ""

    def more(self, text: str) -> None:
        """Add text to the open block; lines may be incomplete."""
        if self._pending_return:  # a chunk may end inside a line end
            text, self._pending_return = "\r" + text, False
        if text.endswith("\r"):
            text, self._pending_return = text[:-1], True
        pieces: list[str] = []
        before, self._before = (
            self._before,
            (self._before + text)[-1:],
        )  # the character that a joiner follows
        for line in visible(before + text)[len(visible(before)) :].splitlines(keepends=True):
            pieces.append(" \n" if self._at_line_start and line == "\n" else line)
            self._at_line_start = line.endswith("\n")
        if pieces:
            written = "".join(pieces)
            self._write(f"{DIM}{written}{PLAIN}" if self._is_dim else written)

    def gap(self) -> None:
        """Write an empty line between two groups of fields."""
        closes = bool(self._open)
        self.close()
        if not closes:
            self._write("\n")

    def close(self) -> None:
        """Close the open block, if there is one."""
        if not self._open:
            return
        if self._pending_return:
            self._pending_return = False
            self.more("\n")
        self._write("\n" if self._at_line_start else "\n\n")
        self._open, self._at_line_start, self._is_dim = "", True, False
