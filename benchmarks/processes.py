"""Processes under measurement: started, pinned to a core, asked for their CPU time, stopped."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent


def pin(core: int) -> None:
    """Keep this process on one core, counted from the end when negative, where that is possible."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of a process and all its threads; ``None`` where nobody tells."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)
    if sys.platform == "win32":
        return None
    said = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True)
    seconds = 0.0
    for part in said.stdout.strip().replace("-", ":").split(":"):
        seconds = seconds * 60 + float(part or 0)
    return seconds if said.returncode == 0 else None


def resident_bytes(pid: int) -> int | None:
    """Return how much memory a process holds; ``None`` where nobody tells."""
    if sys.platform == "win32":
        return None
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True)
    return int(said.stdout) * 1024 if said.returncode == 0 else None


def allow_many_files() -> None:
    """Let this process, and those that it starts, hold as many sockets as the system grants."""
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server under measurement: a process and the port that it listens on."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self.pid = process.pid


@contextlib.contextmanager
def serving(python: str, script: str, *arguments: str, log: Path) -> Iterator[Server]:
    """Run one of ``servers/`` on the first core until the block is left.

    Raises ``RuntimeError``, with what the server said, when it does not listen within 30 seconds.
    """
    port = free_port()
    command: Sequence[str] = [python, str(HERE / "servers" / script), str(port), *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 30
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{script} did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.05)
            yield Server(process, port)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
