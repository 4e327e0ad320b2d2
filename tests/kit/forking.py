"""Programs and servers in processes that are forked from a process that has imported Parley.

- ``run(words, folder, environment)`` runs ``parley ...`` or ``python FILE ...`` to its end.
- ``start(words, output=, environment=)`` starts a server; ``fork(...)`` does so without a loop.

Each is a process like any other: it has an id, takes signals, prints and dies. It only skips the
imports, most of the cost of a program that lives for a second. Run as a script, this module is the
process that forks.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

BOUND = 60
"""Time limit of a program, in seconds."""

MODULES = (
    "aiohttp", "encodings.idna", "parley", "parley.agent.agent", "parley.client.bindings.http",
    "parley.client.connection", "parley.compose", "parley.host.app", "parley.host.in_process",
    "parley.push", "parley.server.run", "parley.store.sqlite.store",
)  # fmt: skip
"""Modules that are imported once. A program imports any further modules itself."""

OPTIONAL = (
    "psycopg", "pwd", "resource", "typer", "uvloop", "parley.cli.app",
    "parley.cli.calls.agent_call", "parley.cli.commands.serve", "parley.store.bus.postgres_bus",
    "parley.store.postgres.store",
)  # fmt: skip
"""Modules that are imported where they are installed."""

PUBLIC = ("compose", "envelope", "extensions", "llm", "push", "security", "testing")
"""Modules that a program must import itself."""


class ForkedServer:
    """A forked process, with the attributes and methods of ``asyncio``'s processes."""

    def __init__(self, pid: int, ended: int, status: bytes = b"") -> None:
        self.pid = pid
        self._ended = ended
        self._status = int(status) if status else None
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        if self._status is None:
            with contextlib.suppress(BlockingIOError):
                said = os.read(self._ended, 16)
                os.close(self._ended)
                self._status = int(said)
        return self._status

    def send_signal(self, number: int) -> None:
        """Send a signal. Raises ``ProcessLookupError`` when the process has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once. Raises ``ProcessLookupError`` when it has ended."""
        self.send_signal(signal.SIGKILL)

    def wait_here(self, seconds: float) -> int:
        """Wait for the end without an event loop. Raises ``TimeoutError``."""
        if self.returncode is None:
            select.select([self._ended], [], [], seconds)
        if (status := self.returncode) is None:
            raise TimeoutError
        return status

    async def wait(self) -> int:
        """Wait for the end, and return the exit status."""
        loop = asyncio.get_running_loop()
        while (status := self.returncode) is None:
            if not self._waiting:
                loop.add_reader(self._ended, self._tell, loop, self._ended)
            self._waiting.append(loop.create_future())
            await self._waiting[-1]
        return status

    def _tell(self, loop: asyncio.AbstractEventLoop, ended: int) -> None:
        loop.remove_reader(ended)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()


CAN_FORK = hasattr(socket, "send_fds") and hasattr(os, "fork")


async def start(
    words: Sequence[str], *, output: BinaryIO, environment: Mapping[str, str]
) -> ForkedServer | asyncio.subprocess.Process:
    """Start ``SCRIPT WORD...`` with this interpreter; ``output`` gets all of its output.

    On systems without fork, this starts the interpreter.
    """
    if CAN_FORK:
        return fork(words, output=output, environment=environment)
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=output, stderr=output, env=environment
    )


def fork(
    words: Sequence[str],
    *,
    output: BinaryIO,
    environment: Mapping[str, str],
    errors: BinaryIO | None = None,
    folder: Path = Path(),
    python: str = sys.executable,
) -> ForkedServer:
    """Fork ``SCRIPT WORD...`` or ``parley WORD...``, to run in a folder.

    ``errors`` gets the error output, by default ``output``. ``python`` is the interpreter that has
    imported Parley.
    """
    job = {"words": [*words], "cwd": str(folder.absolute()), "env": dict(environment)}
    reading, writing = os.pipe()
    try:
        told = json.dumps(job).encode() + b"\n"
        line = _forking(python)
        written = [output.fileno(), (errors or output).fileno(), writing]
        sent = socket.send_fds(line, [told], written)
        line.sendall(told[sent:])
    finally:
        os.close(writing)
    pid, _, ended = os.read(reading, 32).partition(b"\n")
    assert pid, "the process that servers are forked from has ended"
    os.set_blocking(reading, False)
    return ForkedServer(int(pid), reading, ended)


class Ended(NamedTuple):
    """The exit status and the output of a program, as bytes."""

    status: int
    stdout: bytes
    stderr: bytes


def run(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    python: str = sys.executable,
    is_merged: bool = False,
) -> Ended:
    """Run ``parley WORD...`` or ``python FILE WORD...`` to its end, with only these variables.

    ``python`` is the interpreter; ``is_merged`` writes errors to the output.
    """
    if not CAN_FORK:
        module = ["-m", "parley.cli"] if words[0] == "parley" else []
        ran = subprocess.run(
            [python, *module, *words[1:]],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if is_merged else subprocess.PIPE,
            timeout=BOUND,
        )
        return Ended(ran.returncode, ran.stdout, ran.stderr or b"")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        program = fork(
            words if words[0] == "parley" else words[1:],
            output=out,
            errors=out if is_merged else err,
            environment=environment,
            folder=folder,
            python=python,
        )
        try:
            status = program.wait_here(BOUND)
        except TimeoutError:
            program.kill()
            raise
        for file in (out, err):
            file.seek(0)
        return Ended(status, out.read(), err.read())


@cache
def _forking(python: str) -> socket.socket:
    """Start the process that forks, and return the connection to it."""
    ours, its = socket.socketpair()
    own = dict(os.environ)
    if python != sys.executable:
        own.pop("PYTHONPATH", None)  # another interpreter has a Parley of its own
    # -P: this folder holds modules such as ``http``, which would replace the standard library's.
    process = subprocess.Popen([python, "-P", __file__], stdin=its, env=own)
    its.close()
    atexit.register(_end, process, ours)
    return ours


def _end(process: subprocess.Popen[bytes], line: socket.socket) -> None:
    line.close()
    process.wait(10)


# -- in the process that forks ---------------------------------------------------------------------


def _fork() -> None:
    """Fork for each job on the line; send back the id and, later, the end."""
    import gc
    import importlib

    for name in MODULES:
        importlib.import_module(name)
    for name in OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in PUBLIC:  # their submodules stay imported
        sys.modules.pop(f"parley.{name}", None)
        vars(sys.modules["parley"]).pop(name, None)
    gc.collect()
    gc.freeze()  # otherwise each server's first collection copies all of it
    line = socket.socket(fileno=os.dup(0))
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # tests handle Ctrl-C, and close the line
    running: dict[int, int] = {}
    unread = b""
    fds: list[int] = []
    while True:
        ready, _, _ = select.select([line, woken], [], [])
        if woken in ready:
            os.read(woken, 1024)
            _reap(running)
        if line not in ready:
            continue
        said, given, _, _ = socket.recv_fds(line, 1 << 16, 3)
        if not said:
            break
        unread += said
        fds += given
        if unread.endswith(b"\n"):
            output, errors, ended = fds
            child = os.fork()
            if not child:
                signal.set_wakeup_fd(-1)
                for fd in (line.detach(), woken, wake, ended, *running.values()):
                    os.close(fd)
                _be(json.loads(unread), output, errors)
            os.close(output)
            os.close(errors)
            os.write(ended, b"%d\n" % child)
            running[child] = ended
            unread, fds = b"", []
    for child in running:
        os.kill(child, signal.SIGKILL)


def _reap(running: dict[int, int]) -> None:
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        ended = running.pop(child)
        with contextlib.suppress(BrokenPipeError):  # the parent may have gone
            os.write(ended, b"%d" % os.waitstatus_to_exitcode(status))
        os.close(ended)


def _be(job: dict[str, object], output: int, errors: int) -> None:
    """Run the program, and end with its exit status."""
    import runpy
    import threading
    import traceback

    status: object = 0
    try:
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(str(job["cwd"]))
        os.environ.clear()
        os.environ.update(job["env"])  # type: ignore[call-overload]
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for fd, given in ((1, output), (2, errors)):
            os.dup2(given, fd)
            os.close(given)
        sys.argv = [*job["words"]]  # type: ignore[misc]
        if sys.argv[0] == "parley":
            from parley.cli import main

            main()
        else:
            sys.path.insert(0, str(Path(sys.argv[0]).parent.absolute()))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


if __name__ == "__main__":
    _fork()
