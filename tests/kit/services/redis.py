"""Private Redis servers for tests: one, a cluster, and servers that Sentinels watch.

``redis`` is one server per test session (and per xdist worker). A test that kills its server, or
needs more of them, starts them with ``running()``, ``cluster()``, ``watched()``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kit.processes import free_port
from tests.kit.waiting import block_thread

_PROGRAMS = ("redis-server", "valkey-server")
_WAIT = 60.0


def missing() -> str:
    """Return why there can be no server; empty when there can."""
    try:
        import redis  # noqa: F401
    except ImportError:
        return "the package redis is not installed"
    return "" if _program() else "neither Redis nor Valkey is installed"


def _program() -> str:
    return next((found for name in _PROGRAMS if (found := shutil.which(name))), "")


def _until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT
    while not done():
        assert time.monotonic() < deadline, what
        block_thread(0.02)


class RedisServer:
    """A private server on loopback. ``options`` are lines of its configuration."""

    def __init__(self, *options: str, port: int = 0, kind: str = "") -> None:
        self.port = port or free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="parley-redis-", dir="/tmp"))
        self.socket = self.folder / "socket"
        self._kind = kind
        self._process: subprocess.Popen[bytes] | None = None
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {self.folder}",
            *([] if kind else ["save ''", "appendonly no", f"unixsocket {self.socket}"]),
            *options,
        ]
        (self.folder / "conf").write_text("\n".join(lines) + "\n")

    @property
    def pid(self) -> int:
        """The process to send signals to."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """Return the address of a bus on it."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it responds."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_program(), self.folder / "conf", *([self._kind] if self._kind else [])],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        _until(self._answers, (self.folder / "log").read_text(errors="replace"))

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text(errors="replace")
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as line:
                line.sendall(b"PING\r\n")
                # A server with a password responds too.
                return line.recv(100)[:5] in (b"+PONG", b"-NOAU")
        except OSError:
            return False

    def ask(self, *words: str) -> str:
        """Send a command; return the beginning of the raw response."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as line:
            packed = [f"*{len(words)}\r\n".encode()]
            packed += [b"$%d\r\n%b\r\n" % (len(w.encode()), w.encode()) for w in words]
            line.sendall(b"".join(packed))
            return line.recv(1 << 16).decode(errors="replace")

    def kill(self) -> None:
        """Kill it, as a power cut does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_WAIT)
        self._process = None

    def pause(self) -> None:
        """Stop it (SIGSTOP), until ``go_on``."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue after ``pause``."""
        os.kill(self.pid, signal.SIGCONT)

    def remove(self) -> None:
        """Kill it and delete its data. Idempotent."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def running(*options: str) -> Iterator[RedisServer]:
    """Start a server within the context. Skips the test without Redis."""
    if reason := missing():
        pytest.skip(reason)
    server = RedisServer(*options)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def cluster(masters: int = 3, replicas: int = 0) -> Iterator[list[RedisServer]]:
    """Start a cluster whose masters share the slots, and come first. Each has so many replicas."""
    if reason := missing():
        pytest.skip(reason)
    with ExitStack() as all_of_them:
        nodes = []
        for _ in range(masters * (1 + replicas)):
            node = RedisServer(
                "cluster-enabled yes",
                "cluster-config-file nodes",
                "cluster-node-timeout 2000",
                "cluster-require-full-coverage no",
                port=free_port(besides=10_000),
            )
            all_of_them.callback(node.remove)
            node.start()
            nodes.append(node)
        step = -(-16384 // masters)
        for n, node in enumerate(nodes[:masters]):
            last = min((n + 1) * step, 16384) - 1
            assert node.ask("CLUSTER", "ADDSLOTSRANGE", str(n * step), str(last)).startswith("+OK")
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(n + 1))
        for node in nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", str(nodes[0].port))

        def is_whole() -> bool:
            infos = [node.ask("CLUSTER", "INFO") for node in nodes]
            return all(
                "cluster_state:ok" in info and f"cluster_known_nodes:{len(nodes)}" in info
                for info in infos
            )

        _until(is_whole, "the cluster does not come together")
        for n, node in enumerate(nodes[masters:]):
            master = nodes[n % masters]
            node.ask("CLUSTER", "REPLICATE", master.ask("CLUSTER", "MYID").splitlines()[1])
            _until(
                lambda m=master: "state=online" in m.ask("INFO", "replication"), "no replica comes"
            )  # type: ignore[misc]
        yield nodes


@contextmanager
def watched(sentinels: int = 1) -> Iterator[tuple[list[RedisServer], list[RedisServer]]]:
    """Start a master with a replica, and Sentinels that watch them as the service ``hints``."""
    if reason := missing():
        pytest.skip(reason)
    with ExitStack() as all_of_them:

        def start(server: RedisServer) -> RedisServer:
            all_of_them.callback(server.remove)
            server.start()
            return server

        master = start(RedisServer())
        replica = start(RedisServer(f"replicaof 127.0.0.1 {master.port}"))
        _until(lambda: "state=online" in master.ask("INFO", "replication"), "no replica comes")
        guards = [
            start(
                RedisServer(
                    f"sentinel monitor hints 127.0.0.1 {master.port} {sentinels // 2 + 1}",
                    "sentinel down-after-milliseconds hints 500",
                    "sentinel failover-timeout hints 5000",
                    kind="--sentinel",
                )
            )
            for _ in range(sentinels)
        ]
        _until(
            lambda: all(
                str(replica.port) in g.ask("SENTINEL", "REPLICAS", "hints") for g in guards
            ),
            "the Sentinels do not find the replica",
        )
        yield [master, replica], guards


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """The server of this test session. Tests must not stop it."""
    with running() as server:
        yield server
