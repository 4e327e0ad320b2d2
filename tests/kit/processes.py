"""The command in a separate process, ports for servers, and a machine that is too busy.

- ``Running(arguments, folder)``: ``parley ...`` as a person starts it, with its output, Ctrl-C,
  and its exit status.
- ``free_port()``: a port for a server that stops and returns at the same address.
- ``python -m tests.kit.processes make test`` runs a command while its processes stop at random.

``forking`` starts programs faster, where their imports are not under test.
"""

from __future__ import annotations

import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from tests.kit.waiting import block_thread

BOUND = 15.0


def _found(words: list[str], environment: dict[str, str]) -> list[str]:
    """Return a command with the path of its program, as a shell with these variables finds it."""
    return [shutil.which(words[0], path=environment.get("PATH")) or words[0], *words[1:]]


class Running:
    """A running command. Its output is read as it arrives, and kept."""

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
        """The output so far."""
        return self.output["stdout"]

    @property
    def stderr(self) -> str:
        """The error output so far."""
        return self.output["stderr"]

    def until(self, text: str, *, times: int = 1) -> str:
        """Wait until ``text`` appears on either stream, and return all of that stream."""
        while True:
            for said in self.output.values():
                if said.count(text) >= times:
                    return said
            assert self.process.poll() is None or not self._news.empty(), self.output
            self._news.get(timeout=BOUND)

    def end(self, signal: int | None = None) -> int:
        """Wait for the end, after an optional signal, and return the exit status."""
        if signal is not None:
            self.process.send_signal(signal)
        status = self.process.wait(BOUND)
        for reader in self._readers:
            reader.join(BOUND)
        self.process.stdout.close()  # type: ignore[union-attr]
        self.process.stderr.close()  # type: ignore[union-attr]
        return status


# Below the ephemeral ports of the system: one of those could be taken by chance before the server
# starts, or while it is away.
_PORTS = range(10_000, 22_000)
_chance = random.SystemRandom()


def free_port(addresses: Sequence[str] = ("127.0.0.1",), *, besides: int = 0) -> int:
    """Return a port that is free at all of the addresses.

    The port that is ``besides`` above it is free too.
    """
    for _ in range(1000):
        port = _chance.choice(_PORTS)
        with ExitStack() as stack:
            try:
                for address in addresses:
                    for each in {port, port + besides}:
                        stack.enter_context(socket.socket()).bind((address, each))
            except OSError:
                continue
            return port
    raise AssertionError("there is no free port")


EVERY_SECONDS = 6.0


def below(pid: int) -> Iterator[int]:
    """Yield the child processes of a process, with their children."""
    with suppress(OSError):
        for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, tasks.read_text().split()):
                yield child
                yield from below(child)


def is_running(pid: int) -> bool:
    """Return whether the test of a process has not stopped it."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    return False


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to processes; some may have ended."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def main() -> int:
    """Run the command in the arguments. Return its exit code."""
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
