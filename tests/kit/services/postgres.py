"""A private PostgreSQL for tests, and a PgBouncer in front of it.

``postgres`` is one server per test session (and per xdist worker); ``postgres_url`` is a schema in
it for one test. A test that kills its server starts one with ``running()``.
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
    """Return why there can be no server; empty when there can."""
    if os.name != "posix":
        return "PostgreSQL is started by these tests on POSIX systems only"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed"
    return "" if _program("postgres") else "PostgreSQL is not installed"


def _program(name: str) -> str:
    """Return the path of the newest version of a PostgreSQL program; empty without one."""
    found = [str(path) for place in _PLACES for path in Path("/").glob(f"{place[1:]}/{name}")]

    def version(path: str) -> int:
        return int("".join([c for c in Path(path).parent.parent.name if c.isdigit()] or "0"))

    return shutil.which(name) or max(found, key=version, default="")


def _as_other() -> dict[str, Any]:
    """Return the options that start a program as another user than root."""
    if os.geteuid() != 0:
        return {}
    return {"user": "nobody", "group": "nogroup", "extra_groups": []}


def _folder(name: str) -> Path:
    """Return a new folder that the server may write to."""
    folder = Path(tempfile.mkdtemp(prefix=f"parley-{name}-", dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")
    return folder


class PostgresServer:
    """A private server on loopback. ``options`` are its settings (``fsync="off"``).

    With ``standby``, a running server, it follows that server until it is promoted.
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
        """The server's log."""
        return (self._folder / "log").read_text(errors="replace")

    def url(self, database: str = "postgres", schema: str = "") -> str:
        """Return the address of a database, and of a schema in it."""
        query = f"?schema={schema}" if schema else ""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/{database}{query}"

    def new_url(self) -> str:
        """Return an unused address: a schema that the first client creates."""
        return self.url(schema=f"s{next(_schemas)}")

    def new_database(self) -> str:
        """Return the address of a new database."""
        name = f"d{next(_schemas)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as the server's owner; return its result."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def promote(self) -> None:
        """Promote a standby that has received everything to the master."""
        self.execute("SELECT pg_promote(true, 60)")

    def cut_connections(self, database: str = "postgres") -> int:
        """End all other connections, whatever they do; return how many."""
        [(count,)] = self.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
            database,
        )
        return int(count)

    def backends(self) -> list[int]:
        """Return the processes that serve other clients."""
        rows = self.execute(
            "SELECT pid FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return [pid for (pid,) in rows]

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
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
        """Stop it: SIGINT at once, SIGTERM after all clients left, SIGQUIT without cleanup."""
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
        """Stop all its processes (SIGSTOP), until ``go_on``."""
        for pid in (self.pid, *_children(self.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue after ``pause``."""
        for pid in (*_children(self.pid), self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and delete its data."""
        if self._process is not None:
            self.go_on()
        self.stop(signal.SIGQUIT)  # the data is no longer needed
        shutil.rmtree(self._folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    """Return the child processes of a process."""
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
        self._pool_size = pool_size
        self._folder = _folder("pgbouncer")
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (self._folder / "users").write_text(f'"{server.user}" ""\n')
        self._configure()
        if os.geteuid() == 0:
            for path in self._folder.iterdir():
                shutil.chown(path, "nobody", "nogroup")

    def _configure(self) -> None:
        (self._folder / "ini").write_text(
            "[databases]\n"
            f"* = host=127.0.0.1 port={self._server.port} user={self._server.user}\n"
            "[pgbouncer]\n"
            "listen_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\n"
            "auth_type = trust\n"
            f"auth_file = {self._folder}/users\n"
            "pool_mode = transaction\n"
            f"default_pool_size = {self._pool_size}\n"
            "max_client_conn = 500\n"
            "server_login_retry = 1\n"
            "unix_socket_dir =\n"
        )

    def point_to(self, server: PostgresServer) -> None:
        """Send its clients to another server from now on."""
        assert self._process is not None
        self._server = server
        self._configure()
        self._process.send_signal(signal.SIGHUP)

    def url(self, database: str = "postgres", schema: str = "") -> str:
        """Return the address of a database behind it."""
        query = f"?schema={schema}" if schema else ""
        return f"postgresql://{self._server.user}@127.0.0.1:{self.port}/{database}{query}"

    def new_url(self) -> str:
        """Return an unused address."""
        return self.url(schema=f"s{next(_schemas)}")

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
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
        """Stop it and delete its data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_WAIT)
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def running(**options: str) -> Iterator[PostgresServer]:
    """Start a server for one test, which may kill it."""
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
    """Start a standby; the server then acknowledges only writes that the standby has received."""
    standby = PostgresServer(standby=server)
    try:
        standby.start()
        server.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        server.execute("SELECT pg_reload_conf()")
        yield standby
    finally:
        standby.remove()


def either(*servers: PostgresServer) -> str:
    """Return the address of whichever server takes writes."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://{servers[0].user}@{hosts}/postgres?target_session_attrs=read-write"


@contextmanager
def pooled(server: Any, pool_size: int = 5) -> Iterator[PgBouncer]:
    """Start a PgBouncer in front of a server."""
    if shutil.which("pgbouncer") is None and not Path("/usr/sbin/pgbouncer").exists():
        pytest.skip("PgBouncer is not installed")
    pooler = PgBouncer(server, pool_size)
    try:
        pooler.start()
        yield pooler
    finally:
        pooler.remove()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server of this test session. Tests must not stop it, nor cut its connections."""
    with running() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """The address of a schema for one test."""
    return postgres.new_url()
