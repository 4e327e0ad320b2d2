"""Short programs in processes that are forked from one that has imported Parley.

What a program prints and how it ends is that of a process of its own; only its imports are not done
again, which are most of what a short one costs. Run as a script, this is the one that is forked.
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
"""How many seconds a program has."""

MODULES = (
    "asyncio", "typer", "aiohttp", "parley", "parley.cli.app", "parley.cli.calls.agent_call",
    "parley.client.bindings.http", "parley.client.connection", "parley.host.app",
    "parley.host.in_process", "parley.agent.agent", "parley.server.run",
    "parley.store.sqlite.store",
)  # fmt: skip
"""What is imported once."""

PUBLIC = ("compose", "envelope", "extensions", "llm", "push", "security", "testing")
"""Modules that a program has to import itself before it uses them."""


class Ended(NamedTuple):
    """How a program ended, and the bytes that it wrote."""

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
    """Run ``parley`` or ``python FILE`` to its end, in a folder, with these variables alone.

    ``words`` begin with "parley" or "python". ``python`` is the interpreter; ``is_merged`` writes
    errors to the output.
    """
    if not hasattr(os, "fork"):
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
    forked = _forked(python)
    assert forked.stdin is not None
    assert forked.stdout is not None
    with tempfile.TemporaryDirectory() as place:
        out, err = (Path(place) / name for name in ("out", "err"))
        job = {"words": [*words], "cwd": str(folder), "env": dict(environment)}
        job["to"] = [str(out), str(out if is_merged else err)]
        forked.stdin.write(json.dumps(job).encode() + b"\n")
        forked.stdin.flush()
        status = forked.stdout.readline()
        assert status, "the process that programs are forked from has ended"
        return Ended(int(status), out.read_bytes(), b"" if is_merged else err.read_bytes())


@cache
def _forked(python: str) -> subprocess.Popen[bytes]:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [python, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=own
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def _fork() -> None:
    """Fork for each line of the input; say how each child ended."""
    import importlib

    sys.path[0] = ""  # a program finds modules in its folder
    for name in MODULES:
        importlib.import_module(name)
    for name in PUBLIC:  # their insides stay
        sys.modules.pop(f"parley.{name}", None)
        vars(sys.modules["parley"]).pop(name, None)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        child = os.fork()
        if not child:
            _be(job)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _be(job: dict[str, object]) -> None:
    """Be the program, and end as it does."""
    import runpy
    import signal
    import traceback

    signal.alarm(BOUND)
    status: object = 0
    try:
        os.chdir(str(job["cwd"]))
        os.environ.clear()
        os.environ.update(job["env"])  # type: ignore[call-overload]
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for fd, path in enumerate(job["to"], 1):  # type: ignore[arg-type, var-annotated]
            how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.dup2(os.open(str(path), how), fd)
        program, *words = job["words"]  # type: ignore[misc]
        if program == "parley":
            from parley.cli import main

            sys.argv = [program, *words]
            main()
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        import threading

        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


if __name__ == "__main__":
    _fork()
