"""PostgreSQL and Redis for one run: started on free ports of this machine, stopped by process id.

PostgreSQL runs as it comes (``fsync`` and ``synchronous_commit`` on) but for its memory and the
number of its connections; the binaries that the system has are used.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from processes import free_port


class Missing(Exception):
    """A service cannot be had here; the message says why."""


class Postgres:
    """A PostgreSQL server. ``database`` makes a new database and returns its URL."""

    user = "parley"

    def __init__(self, port: int, psql: list[str], pid: int) -> None:
        self.port = port
        self.pid = pid
        self._psql = psql
        self._made = 0

    def database(self) -> str:
        self._made += 1
        self.run(f"CREATE DATABASE run{self._made}")
        return f"postgresql://parley@127.0.0.1:{self.port}/run{self._made}"

    def run(self, sql: str, database: str = "postgres") -> str:
        """Run SQL; return what it prints, unadorned."""
        command = [*self._psql, "-d", database, "-X", "-A", "-t", "-q", "-c", sql]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def as_nobody() -> tuple[int, int] | None:
    """Return whom PostgreSQL is to be run as: it refuses to be run by root."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def binaries() -> Path:
    """Return where the newest PostgreSQL of the system is. Raises ``Missing``."""
    found = glob.glob("/usr/lib/postgresql/*/bin/initdb")
    if found:
        return Path(max(found, key=lambda path: int(Path(path).parts[-3]))).parent
    if initdb := shutil.which("initdb"):
        return Path(initdb).resolve().parent
    raise Missing("PostgreSQL is not installed")


@contextlib.contextmanager
def postgres(place: Path) -> Iterator[Postgres]:
    """Run PostgreSQL in a directory until the block is left. Raises ``Missing``."""
    bin_, port, who = binaries(), free_port(), as_nobody()
    place.mkdir()
    if who:
        place.parent.chmod(0o711)  # a temporary directory is for nobody but its owner
        os.chown(place, *who)
    run_as = {"user": who[0], "group": who[1], "extra_groups": []} if who else {}
    data = place / "data"
    initdb = [
        bin_ / "initdb",
        "-D",
        data,
        "-U",
        "parley",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
    ]
    done = subprocess.run(initdb, cwd=place, capture_output=True, text=True, **run_as)
    if done.returncode:
        raise Missing(f"initdb: {done.stderr.strip()[-300:]}")
    settings = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_connections": 200,
        "shared_buffers": "512MB",
        "max_wal_size": "4GB",
    }
    command = [str(bin_ / "postgres"), "-D", str(data)]
    command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    log = (place / "log").open("wb")
    process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log, **run_as)
    psql = [str(bin_ / "psql"), "-h", "127.0.0.1", "-p", str(port), "-U", "parley"]
    server = Postgres(port, psql, process.pid)

    def answers() -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):
            return server.run("SELECT 1") == "1"
        return False

    with stopped_at_the_end(process):
        until(answers, process, place / "log")
        yield server


@contextlib.contextmanager
def redis(place: Path) -> Iterator[str]:
    """Run Redis, which keeps nothing, until the block is left; its URL. Raises ``Missing``."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if not program:
        raise Missing("neither Redis nor Valkey is installed")
    place.mkdir()
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", place]
    log = (place / "log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log)

    def answers() -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=1) as line,
        ):
            line.sendall(b"PING\r\n")
            return line.recv(16).startswith(b"+PONG")
        return False

    with stopped_at_the_end(process):
        until(answers, process, place / "log")
        yield f"redis://127.0.0.1:{port}/0"


def until(is_so: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a service to answer. Raises ``Missing`` with what it said when it does not."""
    deadline = time.monotonic() + 30
    while not is_so():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Missing(log.read_text(errors="replace").strip()[-500:])
        time.sleep(0.05)


@contextlib.contextmanager
def stopped_at_the_end(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop a service when the block is left: at once, as its data are thrown away."""
    try:
        yield
    finally:
        process.send_signal(2)  # SIGINT: PostgreSQL cuts its connections and ends in order
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
