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
    """Return the CPU time of a process, in the kernel too, with all its threads and children.

    ``None`` where nobody tells.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            own = time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)
            return own + sum(cpu_seconds(child) or 0 for child in children(pid))
    if sys.platform == "win32":
        return None
    said = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True)
    seconds = 0.0
    for part in said.stdout.strip().replace("-", ":").split(":"):
        seconds = seconds * 60 + float(part or 0)
    return seconds if said.returncode == 0 else None


def children(pid: int) -> list[int]:
    """Return the processes that the threads of a process have started."""
    found = []
    for told in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in told.read_text().split()]
    return found


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
    """Run one of ``servers/`` until the block is left; it chooses its core itself.

    Raises ``RuntimeError``, with what the server said, when it does not listen within 30 seconds.
    """
    with running([python, str(HERE / "servers" / script)], *arguments, log=log) as server:
        yield server


@contextlib.contextmanager
def running(
    command: Sequence[str], *arguments: str, log: Path, pinned: bool = False
) -> Iterator[Server]:
    """Run a server until the block is left; its first argument is the port.

    ``pinned`` keeps it on the first core from its beginning: some count the cores that they have.
    Raises ``RuntimeError``, with what the server said, when it does not listen within 30 seconds.
    """
    port = free_port()
    on_one_core = (lambda: pin(0)) if pinned and hasattr(os, "fork") else None
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, str(port), *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=on_one_core,
        )
        try:
            deadline = time.monotonic() + 30
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    said = log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{Path(command[-1]).name} did not start:\n{said}")
                time.sleep(0.05)
            yield Server(process, port)
        finally:
            process.terminate()
            try:
                process.wait(3)  # what it would still finish is of no use to anyone
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
