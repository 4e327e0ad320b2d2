"""Other A2A implementations, for tests against real peers."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

import parley
from parley.server.run import serving
from parley.server.settings import grpc_options

from .counterpart import agent
from .environments import (
    GO_2_4,
    JS_0_3,
    JS_1_3,
    PYTHON_0_3,
    PYTHON_0_3_LAST,
    PYTHON_1_3,
    NotMade,
    command,
)
from .official_caller import Process, official_process

PEERS = {
    "python-1.3": (PYTHON_1_3, "python_1_3.py"),
    "python-0.3": (PYTHON_0_3, "python_0_3.py"),
    "python-0.3.26": (PYTHON_0_3_LAST, "python_0_3.py"),
    "js-1.3": (JS_1_3, "js_1_3.cjs"),
    "js-0.3": (JS_0_3, "js_0_3.cjs"),
    "go-2.4": (GO_2_4, "go"),
}
"""The peers by name: the environment of each, and the file name of its client and server."""


def case(peer: str, *where: str) -> Any:
    """Return a fixture parameter for a peer; a peer that needs a compiler may be missing."""
    marks = [pytest.mark.may_be_missing] if PEERS[peer][0].kind == "go" else []
    return pytest.param((peer, *where), marks=marks)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # The summary of the run lists the peers that may be missing.
        named = item.get_closest_marker("may_be_missing") is not None
        if Path(__file__).parent in item.path.parents and not named:
            item.add_marker(pytest.mark.peer)


def command_of(name: str, kind: str) -> list[str]:
    if name == "parley":
        return [sys.executable, str(Path(__file__).parent / kind / "parley_itself.py")]
    peer, script = PEERS[name]
    try:
        return command(peer, f"{kind}/{script}")
    except NotMade as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def official_servers() -> Iterator[Callable[[str], str]]:
    """Returns the address of an agent on a peer's server, which runs until the session ends."""
    urls: dict[str, str] = {}
    with ExitStack() as running:

        def url_of(name: str) -> str:
            if name not in urls:
                words = command_of(name, "servers")
                process = running.enter_context(Popen(words, stdin=PIPE, stdout=PIPE))
                assert process.stdout is not None
                assert process.stdin is not None
                running.callback(process.wait, 10)
                running.callback(process.stdin.close)
                urls[name] = process.stdout.readline().decode().strip()
                assert urls[name], f"{words} did not start; its status is {process.wait(10)}"
            return urls[name]

        yield url_of


@pytest.fixture(scope="session")
def official_server(official_servers: Callable[[str], str]) -> str:
    """The address of an agent on the official Python SDK's server of 1.x."""
    return official_servers("python-1.3")


@pytest.fixture(scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The address of our server, with the agent for official clients."""
    store = f"sqlite:///{tmp_path_factory.mktemp('official') / 'tasks.db'}"
    app = parley.asgi(agent, store=store, drain=0.5, allow_private_webhooks=True)
    async with serving(app, grpc=grpc_options(0)) as url:
        yield url


Processes = Callable[[str], Awaitable[Process]]


@pytest.fixture(scope="module")
async def official_clients() -> AsyncIterator[Processes]:
    """Returns the process of a peer's client, which runs until the module ends."""
    processes: dict[str, Process] = {}
    async with AsyncExitStack() as running:

        async def process_of(name: str) -> Process:
            if name not in processes:
                words = command_of(name, "clients")
                processes[name] = await running.enter_async_context(official_process(words))
            return processes[name]

        yield process_of
