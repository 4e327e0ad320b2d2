"""The environment of the official SDK's server: its own, because its dependencies are many.

Made in ``.peers/benchmarks`` on the first run, with uv where there is one, else with venv and pip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = ("a2a-sdk[http-server,sqlite,postgresql]>=1.3,<1.4", "uvicorn", "httptools")
REQUIREMENTS_UNIX = ("uvloop",)
PEERS = Path(__file__).parents[1] / ".peers"
PLACE = PEERS / "benchmarks"
OF_PARLEY = (
    "aiohttp", "cryptography", "httptools", "itsdangerous", "joserfc", "msgspec", "rfc8785",
    "starlette>=1.0", "websockets>=15.0",
)  # fmt: skip
"""What Parley needs beside the official SDK, where its source is on the path."""


class Unavailable(Exception):
    """The environment cannot be made here; the message says why."""


def official(*, with_parley: bool = False) -> str:
    """Return the Python of the environment that has the official SDK. Raises ``Unavailable``.

    ``with_parley``: of one that has what Parley needs too.
    """
    wanted = [*REQUIREMENTS, *(REQUIREMENTS_UNIX if sys.platform != "win32" else ())]
    place = PEERS / "benchmarks-with-parley" if with_parley else PLACE
    if with_parley:
        wanted += OF_PARLEY
    python = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    made = place / "made"
    if made.exists() and made.read_text() == "\n".join(wanted):
        return str(python)
    print("making an environment for the official SDK's server", file=sys.stderr)
    uv = shutil.which("uv")
    create = [uv, "venv", "--quiet", "--clear", "--python", sys.executable] if uv else None
    install = [uv, "pip", "install", "--quiet", "--python", str(python)] if uv else None
    try:
        run([*(create or [sys.executable, "-m", "venv", "--clear"]), str(place)])
        run([*(install or [str(python), "-m", "pip", "install", "--quiet"]), *wanted])
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise Unavailable(f"a2a-sdk could not be installed: {said.strip()[-300:]}") from None
    made.write_text("\n".join(wanted))
    return str(python)


def run(command: list[str]) -> None:
    """Run a command. Raises ``CalledProcessError`` with what it said."""
    subprocess.run(command, check=True, capture_output=True, text=True)
