"""The workshop's MCP server in its own process, over HTTP, with a journal of its actions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SCRIPT = Path(__file__).with_name("shop_server.py")


class Shop(NamedTuple):
    """The server's address, journal and process. ``order`` ends when the file ``go`` exists."""

    url: str
    journal: Path
    process: subprocess.Popen[str]

    @property
    def did(self) -> list[str]:
        """The actions in the journal."""
        return self.journal.read_text("utf-8").splitlines() if self.journal.exists() else []

    def forget(self) -> None:
        """Start a new journal."""
        self.journal.unlink(missing_ok=True)
        self.go.unlink(missing_ok=True)
        Path(f"{self.journal}.asked").unlink(missing_ok=True)

    @property
    def go(self) -> Path:
        """The file that lets ``order`` end."""
        return Path(f"{self.journal}.go")


@contextmanager
def running_shop(folder: Path, port: int = 0) -> Iterator[Shop]:
    """Run the server over HTTP, by default at a free port."""
    journal = folder / "journal.txt"
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), "--http", str(port)],
        env={"JOURNAL": str(journal)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
            yield Shop(url, journal, process)
        finally:
            process.kill()
