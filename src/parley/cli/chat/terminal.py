"""Reads what a person types: lines with editing and a history, or lines of a pipe.

Everything is read in the main thread, while the event loop waits: only there does Ctrl-C interrupt
the reading, and leave the terminal as it was.
"""

from __future__ import annotations

import getpass
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from parley.cli.output.streams import print_line
from parley.cli.output.text import one_line

MAX_HISTORY = 1000  # lines
MARKS = ("›", "…")  # where a message begins, and where it continues
QUOTES = '"""'


def history_file() -> Path | None:
    """Return the file of the history, ``None`` for a user without a home folder."""
    if sys.platform == "win32":
        return None  # its terminal keeps the lines
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return Path(state, "parley", "chat_history")


class Terminal:
    """The reader of a conversation; a context manager that keeps the history in a file.

    Raises ``EOFError`` at the end of the input, and ``KeyboardInterrupt``.
    """

    def __init__(self, history: Path | None) -> None:
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._history = history if self.is_terminal else None
        self._readline: Any = None

    def __enter__(self) -> Terminal:
        if self.is_terminal:
            with suppress(ImportError):
                import readline

                self._readline = readline
                readline.set_auto_history(False)
                if self._history is not None:
                    with suppress(OSError):
                        readline.read_history_file(self._history)
        return self

    def __exit__(self, *error: object) -> None:
        if self._readline is None or self._history is None:
            return
        try:
            self._history.parent.mkdir(0o700, parents=True, exist_ok=True)
            os.close(os.open(self._history, os.O_WRONLY | os.O_CREAT, 0o600))
            self._history.chmod(0o600)
            self._readline.set_history_length(MAX_HISTORY)
            self._readline.write_history_file(self._history)
        except OSError as failure:
            print_line(f"note: the history is not kept: {failure}", err=True)

    def line(self, prompt: str) -> str:
        """Return the next line, without its end."""
        if self.is_terminal:
            try:
                return input(f"{'' if prompt in MARKS else '  '}{one_line(prompt)} ")
            except (EOFError, KeyboardInterrupt):
                print_line("")  # the cursor stands behind the prompt
                raise
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def secret(self, prompt: str) -> str:
        """Return a line that is not shown."""
        return getpass.getpass(f"  {one_line(prompt)} ") if self.is_terminal else self.line(prompt)

    def message(self) -> str:
        """Return a message: a line, lines that end with a backslash, or lines within quotes."""
        text = self.line(MARKS[0])
        if self.is_terminal and text.startswith(QUOTES):
            text = text.removeprefix(QUOTES)
            while not text.rstrip().endswith(QUOTES):
                text += "\n" + self.line(MARKS[1])
            text = text.rstrip().removesuffix(QUOTES).strip("\n")
        while self.is_terminal and text.endswith("\\"):
            text = text[:-1] + "\n" + self.line(MARKS[1])
        if self._readline is not None and text.strip():
            self._readline.add_history(text)
        return text
