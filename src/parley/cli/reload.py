"""``serve --reload``: the server in a process of its own, started again when its code changes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import say
from parley.cli.output.text import one_line
from parley.model.distribution import install_command

PATIENCE = 30.0  # seconds for a server to end; more than it gives its turns


def serve_and_watch(arguments: Sequence[str], folders: Sequence[Path]) -> int:
    """Run ``parley`` with ``arguments`` until Ctrl-C, again whenever Python code changes.

    A server that cannot start, because of an error in the code, waits for the next change. Each
    server has ended, and let go of port and store, before the next one starts.

    Raises ``UsageFailure`` when what watches files is not installed.
    """
    try:
        from watchfiles import PythonFilter, watch
    except ModuleNotFoundError:
        raise UsageFailure(
            "--reload needs its extra", hint=f"install it with: {install_command('reload')}"
        ) from None
    signal.signal(signal.SIGTERM, _interrupt)
    server = _start(arguments)
    try:
        for changes in watch(*folders, watch_filter=PythonFilter()):
            names = sorted({Path(path).name for _, path in changes})
            say(f"{one_line(', '.join(names))} changed; starting again", aside=True)
            _end(server)
            server = _start(arguments)
    except KeyboardInterrupt:
        pass
    finally:
        _end(server)
    return 0


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "parley", *arguments]
    if sys.platform == "win32":  # where only a group of its own can be told to end
        return subprocess.Popen(command, creationflags=subprocess.CREATE_NEW_PROCESS_GROUP)
    return subprocess.Popen(command)


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        if sys.platform == "win32":
            server.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            server.send_signal(signal.SIGTERM)
    try:
        server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
