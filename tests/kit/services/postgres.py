"""A private PostgreSQL for tests, and a PgBouncer in front of it.

``postgres`` is one server a test session (a worker of xdist has its own), ``postgres_url`` a schema
of its own in it for each test. A test that kills its server starts one with ``running()``.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.processes import free_port
from tests.kit.waiting import block_thread

_PLACES = ["/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin"]
_WAIT = 60.0
_schemas = itertools.count(1)


def missing() -> str:
    """Why there can be no server, empty when there can."""
    if os.name != "posix":
        return "PostgreSQL is started by these tests on POSIX systems only"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed"
    return "" if _program("postgres") else "PostgreSQL is not installed"


def _program(name: str) -> str:
    """Where a program of PostgreSQL is, the newest of several; empty when it is nowhere."""
    found = [str(path) for place in _PLACES for path in Path("/").glob(f"{place[1:]}/{name}")]

    def version(path: str) -> int:
        return int("".join([c for c in Path(path).parent.parent.name if c.isdigit()] or "0"))

    return shutil.which(name) or max(found, key=version, default="")


def _as_other() -> dict[str, Any]:
    """How to start what refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": "nobody", "group": "nogroup", "extra_groups": []}


def _folder(name: str) -> Path:
    """A new folder that the server may write to."""
    folder = Path(tempfile.mkdtemp(prefix=f"parley-{name}-", dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")
    return folder


class PostgresServer:
    """A server of our own on loopback. ``options`` are settings of it (``fsync="off"``).

    One that is a ``standby`` of another server, which runs, follows it until it is promoted.
    """

    def __init__(self, standby: PostgresServer | None = None, **options: str) -> None:
        self.user = "parley"
        self.port = free_port()
        self._options = options
        self._folder = _folder("postgres")
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        if standby is not None:
            making = ["pg_basebackup", "-d", standby.url(), "-R", "-c", "fast", "--no-sync"]
        else:
            making = ["initdb", "-U", self.user, "-A", "trust", "-E", "UTF8", "--no-locale"]
            making += ["--no-sync"]
        subprocess.run(
            [_program(making[0]), *making[1:], "-D", self._data],
            check=True,
            capture_output=True,
            cwd=self._folder,
            **_as_other(),
        )

    @property
    def pid(self) -> int:
        """The process to send signals to."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server said."""
        return (self._folder / "log").read_text(errors="replace")

    def url(self, database: str = "postgres", schema: str = "") -> str:
        """The address of a database, and of a schema in it."""
        query = f"?schema={schema}" if schema else ""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/{database}{query}"

    def new_url(self) -> str:
        """An address that nobody used: a schema of its own, made by who opens it."""
        return self.url(schema=f"s{next(_schemas)}")

    def new_database(self) -> str:
        """The address of a new database."""
        name = f"d{next(_schemas)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Do something as the server's owner; return what it found."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def promote(self) -> None:
        """Have a standby that has heard all that there was take its master's place."""
        self.execute("SELECT pg_promote(true, 60)")

    def cut_connections(self, database: str = "postgres") -> int:
        """End all connections but this one, whatever they do; return how many."""
        [(count,)] = self.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
            database,
        )
        return int(count)

    def backends(self) -> list[int]:
        """Return the processes that serve clients, but this one's."""
        rows = self.execute(
            "SELECT pid FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return [pid for (pid,) in rows]

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._folder),
            "max_connections": "600",
            "shared_buffers": "64MB",
            "jit": "off",
        } | self._options
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(_program("postgres"), "-D", self._data),
                    *[
                        part
                        for name, value in settings.items()
                        for part in ("-c", f"{name}={value}")
                    ],
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **_as_other(),
            )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        import psycopg

        deadline = time.monotonic() + _WAIT
        while True:
            assert self._process is not None
            assert self._process.poll() is None, self.log
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, self.log
                block_thread(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Shut it down: SIGINT at once, SIGTERM once all have gone, SIGQUIT without tidying up."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_WAIT)
            self._process = None

    def kill(self) -> None:
        """Kill it with all its processes, as a power cut does."""
        assert self._process is not None
        processes = [self._process.pid, *_children(self._process.pid)]
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(_WAIT)
        self._process = None
        deadline = time.monotonic() + _WAIT
        while any(_lives(pid) for pid in processes):
            assert time.monotonic() < deadline
            block_thread(0.005)

    def restart(self) -> None:
        """Stop it and start it again, on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop all its processes in their tracks, until ``go_on``."""
        for pid in (self.pid, *_children(self.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after ``pause``."""
        for pid in (*_children(self.pid), self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and remove all that it kept."""
        if self._process is not None:
            self.go_on()
        self.stop(signal.SIGQUIT)  # nobody needs what it holds
        shutil.rmtree(self._folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    """The processes that a process started."""
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in found.stdout.split()]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    found = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return bool(found.stdout.strip()) and not found.stdout.strip().startswith("Z")


class PgBouncer:
    """A pooler in front of a server, in transaction mode."""

    def __init__(self, server: PostgresServer, pool_size: int = 5) -> None:
        self._server = server
        self._folder = _folder("pgbouncer")
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (self._folder / "users").write_text(f'"{server.user}" ""\n')
        (self._folder / "ini").write_text(
            "[databases]\n"
            f"* = host=127.0.0.1 port={server.port} user={server.user}\n"
            "[pgbouncer]\n"
            "listen_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\n"
            "auth_type = trust\n"
            f"auth_file = {self._folder}/users\n"
            "pool_mode = transaction\n"
            f"default_pool_size = {pool_size}\n"
            "max_client_conn = 500\n"
            "unix_socket_dir =\n"
        )
        if os.geteuid() == 0:
            for path in self._folder.iterdir():
                shutil.chown(path, "nobody", "nogroup")

    def url(self, database: str = "postgres", schema: str = "") -> str:
        """The address of a database behind it."""
        query = f"?schema={schema}" if schema else ""
        return f"postgresql://{self._server.user}@127.0.0.1:{self.port}/{database}{query}"

    def new_url(self) -> str:
        """An address that nobody used."""
        return self.url(schema=f"s{next(_schemas)}")

    def start(self) -> None:
        """Start it and wait until it answers."""
        import psycopg

        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [shutil.which("pgbouncer") or "/usr/sbin/pgbouncer", self._folder / "ini"],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **_as_other(),
            )
        deadline = time.monotonic() + _WAIT
        while True:
            assert self._process.poll() is None, (self._folder / "log").read_text()
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                block_thread(0.02)
            else:
                return

    def remove(self) -> None:
        """End it and remove all that it kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_WAIT)
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def running(**options: str) -> Iterator[PostgresServer]:
    """A server for one test, which may kill it."""
    if why := missing():
        pytest.skip(why)
    server = PostgresServer(**options)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def standing_by(server: PostgresServer) -> Iterator[PostgresServer]:
    """A standby of a server, which from then on acknowledges what the standby has taken."""
    standby = PostgresServer(standby=server)
    try:
        standby.start()
        server.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        server.execute("SELECT pg_reload_conf()")
        yield standby
    finally:
        standby.remove()


@contextmanager
def pooled(server: PostgresServer) -> Iterator[PgBouncer]:
    """A PgBouncer in front of a server."""
    if shutil.which("pgbouncer") is None and not Path("/usr/sbin/pgbouncer").exists():
        pytest.skip("PgBouncer is not installed")
    pooler = PgBouncer(server)
    try:
        pooler.start()
        yield pooler
    finally:
        pooler.remove()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server of this test session. It must not be stopped, nor its connections cut."""
    with running() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """The address of a schema of the test's own."""
    return postgres.new_url()
