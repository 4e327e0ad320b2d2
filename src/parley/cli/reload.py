"""``serve --reload``: runs the server in a child process and restarts it when its code changes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import print_line
from parley.cli.output.text import one_line
from parley.model.distribution import install_command

STOP_TIMEOUT = 30.0  # seconds; longer than the grace period of turns


def serve_and_watch(arguments: Sequence[str], folders: Sequence[Path]) -> int:
    """Run ``parley`` with ``arguments`` until Ctrl-C, and restart it when Python code changes.

    After a failed start, as from an error in the code, the next change starts the server again.
    Each server has ended, and released port and store, before the next one starts.

    Raises ``UsageFailure`` if the file watcher is not installed.
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
            print_line(f"{one_line(', '.join(names))} changed; starting again", err=True)
            _stop(server)
            server = _start(arguments)
    except KeyboardInterrupt:
        pass
    finally:
        _stop(server)
    return 0


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "parley", *arguments]
    if sys.platform == "win32":  # only a process group can get CTRL_BREAK
        return subprocess.Popen(command, creationflags=subprocess.CREATE_NEW_PROCESS_GROUP)
    return subprocess.Popen(command)


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        if sys.platform == "win32":
            server.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
