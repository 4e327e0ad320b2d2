"""Processes that a run talks to."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 30

_PORTS = range(15_000, 32_000)  # below those that systems give to connections


def free_port() -> int:
    """Return a port that nobody listens to, and that no connection takes by itself meanwhile."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def conformance_agent(*options: str, environment: Mapping[str, str] = {}) -> Iterator[str]:
    """Serve ``examples/conformance_agent.py``; its address."""
    port, grpc_port = free_port(), free_port()
    words = [sys.executable, "examples/conformance_agent.py", "--port", str(port)]
    words += ["--grpc-port", str(grpc_port), *options]
    url = f"http://127.0.0.1:{port}"
    with running(words, url, environment=environment):
        yield url


@contextmanager
def running(
    words: Sequence[str], url: str, *, environment: Mapping[str, str] = {}
) -> Iterator[None]:
    """Have a server run for as long as the block lasts, from when its card can be had."""
    process = subprocess.Popen(words, cwd=ROOT, env={**os.environ, **environment})
    try:
        until = time.monotonic() + PATIENCE
        while not _is_there(f"{url}/.well-known/agent-card.json"):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{' '.join(words)} did not start")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def _is_there(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
