"""The command at a terminal of its own, typed to and read like a person does.

``with At(["chat", url], folder) as terminal: terminal.until("›"); terminal.type("Hello")``
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.kit.processes import BOUND
from tests.kit.waiting import wait_until

STYLES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class At:
    """A running command at a terminal of 80 columns and 30 lines."""

    def __init__(self, arguments: Sequence[str], folder: Path, **environment: str) -> None:
        import pty

        keep = {k: v for k, v in os.environ.items() if not k.startswith(("A2ACLI_", "PARLEY_"))}
        keep.pop("NO_COLOR", None)
        own = {"HOME": str(folder), "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30"}
        self.raw = b""
        self._seen = 0
        self._pid, self._terminal = pty.fork()
        if not self._pid:
            os.chdir(folder)
            words = [sys.executable, "-m", "parley.cli", *arguments]
            os.execvpe(words[0], words, keep | own | environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self.end()
        os.close(self._terminal)

    @property
    def text(self) -> str:
        """What was written so far, without styles."""
        return STYLES.sub(b"", self.raw).decode(errors="replace")

    def until(self, wanted: str, bound: float = BOUND) -> str:
        """Wait until a text appears after the last one; return what came up to it."""
        limit = time.monotonic() + bound
        while (at := self.text.find(wanted, self._seen)) < 0:
            assert time.monotonic() < limit, self.text[self._seen :]
            assert self._read(limit - time.monotonic()), self.text[self._seen :]
        begin, self._seen = self._seen, at + len(wanted)
        return self.text[begin : self._seen]

    def type(self, line: str, end: str = "\n") -> None:
        """Type a line."""
        os.write(self._terminal, (line + end).encode())

    def press(self, key: str) -> None:
        """Press Ctrl with a letter."""
        os.write(self._terminal, bytes([ord(key) & 31]))

    def interrupt_until(self, wanted: str) -> None:
        """Press Ctrl-C until a text appears: a prompt that handles another key loses it."""
        for _ in range(5):
            self.press("C")
            with contextlib.suppress(AssertionError):
                self.until(wanted, BOUND / 5)
                return
        self.until(wanted, 0)

    def hang_up(self) -> int:
        """Close the terminal, wait for the end, and return the exit status."""
        os.close(self._terminal)
        self._terminal = os.open(os.devnull, os.O_RDONLY)
        found: list[int] = []

        def ended() -> bool:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            found.append(status)
            return bool(pid)

        wait_until(ended, BOUND)
        self._pid = 0
        return os.waitstatus_to_exitcode(found[-1])

    def end(self) -> int:
        """Wait for the end, and return the exit status."""
        limit = time.monotonic() + BOUND
        while self._read(limit - time.monotonic()):
            assert time.monotonic() < limit, self.text[self._seen :]
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._terminal], [], [], max(0.0, seconds))[0]:
            return True
        try:
            piece = os.read(self._terminal, 65536)
        except OSError:  # Linux reports a closed terminal this way
            return False
        self.raw += piece
        return bool(piece)
