"""Environments of other A2A implementations, for tests that talk to the real thing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REQUIREMENTS = ("a2a-sdk[http-server]==1.3.0", "uvicorn")
VARIABLE = "PARLEY_OFFICIAL_SDK_PYTHON"
HOME = Path(__file__).resolve().parents[2] / ".peers"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.peer)


@pytest.fixture(scope="session")
def official_python() -> Path:
    """The Python of an environment with the official SDK: a given one, or one made once."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    home = HOME / "a2a-sdk-1.3"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    try:
        HOME.mkdir(exist_ok=True)
        with _alone(HOME / "a2a-sdk-1.3.lock"):
            # The mark is set at the end, so that an environment that was begun is made anew.
            if not (home / "ready").exists():
                _make(home, python)
                (home / "ready").touch()
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        pytest.skip(
            f"no environment with {REQUIREMENTS[0]} could be made ({said.strip()[-300:]}); "
            f"set {VARIABLE} to the Python of one"
        )
    return python


def _make(home: Path, python: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    if uv := shutil.which("uv"):
        _run(uv, "venv", "--python", sys.executable, str(home))
        _run(uv, "pip", "install", "--python", str(python), *REQUIREMENTS)
    else:
        _run(sys.executable, "-m", "venv", str(home))
        _run(str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock among processes; it is let go of even by one that dies."""
    with lock.open("a+") as file:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def official_server(official_python: Path) -> Iterator[str]:
    """The address of an agent on the official SDK's server."""
    script = Path(__file__).with_name("official_server.py")
    command = [str(official_python), str(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        url = process.stdout.readline().decode().strip()
        assert url, f"the official server did not start; its status is {process.wait()}"
        yield url
        process.stdin.close()
        process.wait(10)
