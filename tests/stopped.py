"""Runs a command while its processes stop at random, as on a machine with too much to do.

``python -m tests.stopped make test``: about every ``EVERY_SECONDS`` all processes that the command
started, or a random half of them, stop for 0.4 to 1 second. Linux only.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.polling import block_thread

EVERY_SECONDS = 6.0


def below(pid: int) -> Iterator[int]:
    """Yield the processes that a process started, and what these started."""
    with suppress(OSError):
        for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, tasks.read_text().split()):
                yield child
                yield from below(child)


def is_running(pid: int) -> bool:
    """Return whether a process was not stopped by the test that it belongs to."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    return False


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to processes, of which some may have ended."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def main() -> int:
    """Run the command of the arguments. Return its exit code."""
    with subprocess.Popen(sys.argv[1:]) as command:
        while command.poll() is None:
            block_thread(random.uniform(0.5, 1.5) * EVERY_SECONDS)
            pids = [pid for pid in below(command.pid) if is_running(pid)]
            if random.random() < 0.5:
                pids = random.sample(pids, len(pids) // 2)
            signal_all(pids, signal.SIGSTOP)
            try:
                block_thread(random.uniform(0.4, 1.0))
            finally:
                signal_all(pids, signal.SIGCONT)
        return command.returncode


if __name__ == "__main__":
    sys.exit(main())
