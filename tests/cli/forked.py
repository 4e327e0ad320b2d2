"""The command in processes that are forked from one that has imported it.

What a command prints and how it ends is that of a process of its own; only its imports are not done
again, which are most of what a short command costs. Run as a script, it is the one that is forked.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

BOUND = 60
"""How many seconds a command has."""


class Ended(NamedTuple):
    """How a command ended, and the bytes that it wrote."""

    status: int
    stdout: bytes
    stderr: bytes


def run(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Ended:
    """Run ``parley`` to its end, in a folder, with these variables alone."""
    if not hasattr(os, "fork"):
        command = [sys.executable, "-m", "parley.cli", *words]
        options = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": BOUND}
        ran = subprocess.run(command, cwd=folder, env=environment, **options)  # type: ignore[call-overload]
        return Ended(ran.returncode, ran.stdout, ran.stderr)
    forked = _forked()
    with tempfile.TemporaryDirectory() as place:
        written = [Path(place) / name for name in ("out", "err")]
        job = {"words": words, "cwd": str(folder), "env": dict(environment)}
        asked = json.dumps({**job, "to": [str(path) for path in written]})
        assert forked.stdin is not None
        assert forked.stdout is not None
        forked.stdin.write(f"{asked}\n".encode())
        forked.stdin.flush()
        status = forked.stdout.readline()
        assert status, "the process that commands are forked from has ended"
        return Ended(int(status), *(path.read_bytes() for path in written))


@cache
def _forked() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def _main() -> None:
    """Fork for each line of the input; say how each child ended."""
    import parley.cli.app
    import parley.cli.calls.agent_call
    import parley.client.bindings.http
    import parley.client.connection  # noqa: F401

    for line in sys.stdin.buffer:
        job = json.loads(line)
        child = os.fork()
        if not child:
            _command(job)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _command(job: dict[str, object]) -> None:
    import signal

    from parley.cli import main

    signal.alarm(BOUND)
    status: object = 70
    try:
        os.chdir(str(job["cwd"]))
        os.environ.clear()
        os.environ.update(job["env"])  # type: ignore[call-overload]
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for fd, path in enumerate(job["to"], 1):  # type: ignore[arg-type, var-annotated]
            os.dup2(os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
        sys.argv = ["parley", *job["words"]]  # type: ignore[misc]
        main()
    except SystemExit as end:
        status = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


if __name__ == "__main__":
    _main()
