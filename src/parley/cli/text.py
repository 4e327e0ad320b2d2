"""The ``text`` format: ``Label: value`` lines and blocks, safe to read, to pipe and to parse.

A field is one line. What does not fit on a line is a block: its label alone on a line, the
content, and an empty line that closes it; an empty line inside the content is written as one
space, so that a reader can skip a block whole. Nothing that an agent says can move the cursor:
control characters are shown, not sent (command-line specification, §11.2).
"""

from __future__ import annotations

import re
from collections.abc import Callable

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_LINE_ENDS = re.compile(r"\r\n?")


def visible(text: str) -> str:
    """Return ``text`` with control characters written out; tabs and line ends stay."""
    return _CONTROL.sub(_written_out, _LINE_ENDS.sub("\n", text))


def _written_out(match: re.Match[str]) -> str:
    number = ord(match.group())
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def one_line(text: str) -> str:
    """Return ``text`` on one line, with its white space folded."""
    return visible(" ".join(text.split()))


class TextWriter:
    """Writes fields and blocks. A block may stay open and grow; anything else closes it."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._open = ""
        self._at_line_start = True
        self._pending_return = False

    @property
    def open_block(self) -> str:
        """The key of the block that is open, or nothing."""
        return self._open

    def field(self, label: str, value: object) -> None:
        """Write one field."""
        self.close()
        self._write(f"{label}: {one_line(str(value))}\n")

    def content(self, label: str, text: str) -> None:
        """Write a field where the text is one line, else a block."""
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

    def begin(self, label: str, key: str = "block") -> None:
        """Open a block that ``more`` can add to."""
        self.close()
        self._write(f"{label}:\n")
        self._open, self._at_line_start = key, True

    def more(self, text: str) -> None:
        """Add to the open block, as far as it goes; lines need not be whole."""
        if self._pending_return:  # a line end may be cut in two by a chunk's end
            text, self._pending_return = "\r" + text, False
        if text.endswith("\r"):
            text, self._pending_return = text[:-1], True
        pieces: list[str] = []
        for line in visible(text).splitlines(keepends=True):
            pieces.append(" \n" if self._at_line_start and line == "\n" else line)
            self._at_line_start = line.endswith("\n")
        if pieces:
            self._write("".join(pieces))

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
        self._open, self._at_line_start = "", True
