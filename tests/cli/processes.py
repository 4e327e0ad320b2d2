"""The command in a process of its own, for what only a process can show."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

BOUND = 15.0


def _found(words: list[str], environment: dict[str, str]) -> list[str]:
    """Return a command with the place of its program, as a shell with these variables finds it."""
    return [shutil.which(words[0], path=environment.get("PATH")) or words[0], *words[1:]]


class Running:
    """A command that is running. Its output is read as it comes, and kept."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        *,
        command: Sequence[str] = (sys.executable, "-m", "parley.cli"),
        **environment: str,
    ) -> None:
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("A2ACLI_", "PARLEY_"))}
        self.process = subprocess.Popen(
            _found([*command, *arguments], environment),
            cwd=folder,
            env=keep | {"HOME": str(folder), "PYTHONUNBUFFERED": "1"} | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.output = {"stdout": "", "stderr": ""}
        self._news: queue.Queue[None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=(name, getattr(self.process, name)))
            for name in self.output
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, stream: object) -> None:
        for line in stream:  # type: ignore[attr-defined]
            self.output[name] += line
            self._news.put(None)
        self._news.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()

    @property
    def stdout(self) -> str:
        """What came out so far."""
        return self.output["stdout"]

    @property
    def stderr(self) -> str:
        """What was said beside it so far."""
        return self.output["stderr"]

    def until(self, text: str, *, times: int = 1) -> str:
        """Wait until ``text`` was said, on whichever stream, and return all of that stream."""
        while True:
            for said in self.output.values():
                if said.count(text) >= times:
                    return said
            assert self.process.poll() is None or not self._news.empty(), self.output
            self._news.get(timeout=BOUND)

    def end(self, signal: int | None = None) -> int:
        """Wait for the end, after a signal if one is given, and return the exit status."""
        if signal is not None:
            self.process.send_signal(signal)
        status = self.process.wait(BOUND)
        for reader in self._readers:
            reader.join(BOUND)
        self.process.stdout.close()  # type: ignore[union-attr]
        self.process.stderr.close()  # type: ignore[union-attr]
        return status
