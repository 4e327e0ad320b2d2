"""A private object store with the interface of S3: moto's server, in a separate process.

``s3`` is one server per test session (and per xdist worker), with the environment variables of S3
clients. Each test uses its own bucket or prefix.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

from tests.kit.processes import free_port
from tests.kit.waiting import wait_until

BUCKET = "parley"


def missing() -> str:
    """Return why there can be no server; empty when there can."""
    absent = [name for name in ("moto", "flask", "obstore") if find_spec(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


class S3Server:
    """A private server on loopback, with one bucket."""

    def __init__(self) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, wait until it responds, and create the bucket."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers, interval=0.05)
        request = urllib.request.Request(
            f"{self.endpoint}/{BUCKET}", method="PUT", headers={"Authorization": "AWS test:test"}
        )
        urllib.request.urlopen(request).close()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "moto's server ended"
        try:
            urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=5).close()
        except (urllib.error.URLError, OSError):
            return False
        return True

    def end(self) -> None:
        """Stop it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def place(self) -> str:
        """Return the address of a new prefix."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@contextmanager
def running() -> Iterator[S3Server]:
    """Run a server within the context; skips the test without moto."""
    if reason := missing():
        pytest.skip(reason)
    server = S3Server()
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """One server for the tests of this process; clients find it through the environment."""
    with running() as server:
        before = {name: os.environ.get(name) for name in server.environment}
        os.environ.update(server.environment)
        try:
            yield server
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
