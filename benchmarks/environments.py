"""Where the measured peers come from: each in an environment of its own below ``.peers``.

    make bench-peers      makes all of them, and says what is missing

Those of Python, JavaScript and Go are made when they are first measured. The Rust one is built by
``make bench-peers`` alone, since that takes minutes. What a machine lacks (Go, cargo, Node.js) is
named, and the rest is measured.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.peers.environments import FASTA2A, GO_2_4, JS_1_3, NotMade, Peer, alone, command

SERVERS = Path(__file__).parent / "servers"
REQUIREMENTS = ("a2a-sdk[http-server,sqlite,postgresql]>=1.3,<1.4", "uvicorn", "httptools")
REQUIREMENTS_UNIX = ("uvloop",)
PEERS = ROOT / ".peers"
PLACE = PEERS / "benchmarks"
OF_PARLEY = (
    "aiohttp", "cryptography", "httptools", "itsdangerous", "joserfc", "msgspec", "rfc8785",
    "starlette>=1.0", "websockets>=15.0",
)  # fmt: skip
"""What Parley needs beside the official SDK, where its source is on the path."""
GO = Peer("a2a-go-server", "PARLEY_MEASURED_GO", GO_2_4.packages, "go-program")
RUST = PEERS / "a2a-rs-server"


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


def peer(of: Peer, script: str) -> list[str]:
    """Return the command of one of ``servers/`` in a peer's environment. Raises ``Unavailable``."""
    try:
        return command(of, str(SERVERS / script))
    except NotMade as error:
        raise Unavailable(str(error)) from None


def rust(*, build: bool = False) -> list[str]:
    """Return the command of the Rust SDK's server. Raises ``Unavailable``.

    It is built again whenever its sources change, if ``build`` says so.
    """
    sources = SERVERS / "a2a_rs"
    texts = [(sources / name).read_bytes() for name in ("Cargo.toml", "Cargo.lock", "src/main.rs")]
    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()
    made, program = RUST / "ready", RUST / "measured"
    if made.exists() and made.read_text() == digest:
        return [str(program)]
    if not build:
        raise Unavailable("`make bench-peers` builds it, which takes minutes")
    if (cargo := shutil.which("cargo")) is None:
        raise Unavailable("there is no cargo")
    PEERS.mkdir(exist_ok=True)
    with alone(PEERS / "a2a-rs-server.lock"):
        where = [
            "--manifest-path",
            str(sources / "Cargo.toml"),
            "--target-dir",
            str(RUST / "target"),
        ]
        try:
            run([cargo, "build", "--release", "--locked", "--quiet", *where])
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise Unavailable(f"cargo: {said.strip()[-300:]}") from None
        shutil.copy2(RUST / "target/release/measured", program)
        shutil.rmtree(RUST / "target")
        made.write_text(digest)
    return [str(program)]


COMMANDS: dict[str, Callable[[], list[str]]] = {
    "bare ASGI": lambda: [sys.executable, str(SERVERS / "bare.py")],
    "typed ASGI": lambda: [sys.executable, str(SERVERS / "typed.py")],
    "Parley": lambda: [sys.executable, str(SERVERS / "parley_agents.py")],
    "a2a-rs": rust,
    "a2a-go": lambda: peer(GO, "a2a_go/main.go"),
    "a2a-js": lambda: peer(JS_1_3, "a2a_js/server.cjs"),
    "fasta2a": lambda: peer(FASTA2A, "fasta2a/server.py"),
    "a2a-python": lambda: [official(), str(SERVERS / "official.py")],
}
"""The command of each that is measured. What it does follows: the port, and what the agent does."""


def run(command: list[str]) -> None:
    """Run a command. Raises ``CalledProcessError`` with what it said."""
    subprocess.run(command, check=True, capture_output=True, text=True)


def main() -> None:
    """Make all environments, one after the other."""
    for who, made in COMMANDS.items():
        print(f"{who} ... ", end="", flush=True)
        try:
            rust(build=True) if who == "a2a-rs" else made()
        except Unavailable as error:
            print(f"not here: {error}")
        else:
            print("ready")


if __name__ == "__main__":
    main()
