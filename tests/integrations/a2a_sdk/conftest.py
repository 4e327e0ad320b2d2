"""Servers in the environments of the official SDK, with Parley's source on the path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.conftest import Served
from tests.house.sizes import ROOT
from tests.peers.environments import (
    PYTHON_0_3_LAST_ON_PARLEY,
    PYTHON_0_3_ON_PARLEY,
    PYTHON_1_3_ON_PARLEY,
    NotMade,
    Peer,
    command,
)

HERE = Path(__file__).parent
VERSIONS = {
    "1.3.0": (PYTHON_1_3_ON_PARLEY, "served_1.py"),
    "0.3.10": (PYTHON_0_3_ON_PARLEY, "served_0_3.py"),
    "0.3.26": (PYTHON_0_3_LAST_ON_PARLEY, "served_0_3.py"),
}
"""The versions by number: the environment, and the script of its executors."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.peer)


def python_of(peer: Peer) -> Sequence[str]:
    """Return the command for a peer's Python, without a script."""
    try:
        return command(peer, "environments.py")[:-1]
    except NotMade as error:
        pytest.skip(str(error))


def server_of(peer: Peer, script: str, store: Path) -> Served:
    """Return a server in a peer's environment, not yet started."""
    return Served(
        store, script=HERE / script, python=python_of(peer), env={"PYTHONPATH": str(ROOT / "src")}
    )


@asynccontextmanager
async def serving(version: str, store: Path) -> AsyncIterator[Served]:
    """Serve the executors of a version within a block."""
    server = server_of(*VERSIONS[version], store)
    await server.start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.returncode is None:
            await server.end()
