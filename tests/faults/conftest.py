"""Servers in their own processes, which tests kill and start again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import parley
from parley import Agent, Execution, Settings, Turn
from parley.server.run import serving
from tests.faults.malformed import LIMIT
from tests.kit import forking
from tests.kit.forking import ForkedServer
from tests.kit.processes import free_port
from tests.kit.waiting import let_time_pass

SERVED = Path(__file__).with_name("served.py")


class Served:
    """A server that keeps its port and its store over all restarts.

    It is forked, unless ``python`` names an interpreter.
    """

    def __init__(
        self,
        store: Path,
        *,
        grpc: bool = False,
        script: Path = SERVED,
        args: Sequence[str] = (),
        store_url: str = "",
        python: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._python = python
        self._env = {**os.environ, **(env or {})}
        self._store_url = store_url or f"sqlite:///{store}"
        self._script = script
        self._args = args
        self.port = free_port()
        self.grpc_port = free_port() if grpc else None
        self.store = store
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: ForkedServer | asyncio.subprocess.Process | None = None
        self.log = store.with_suffix(".log")

    def words(self) -> list[str]:
        """Return the script of the server and its arguments."""
        grpc = [str(self.grpc_port)] if self.grpc_port else []
        return [str(self._script), str(self.port), self._store_url, *grpc, *self._args]

    async def start(self) -> None:
        """Start the server and wait for a response: an open port does not yet mean a signal
        handler."""
        with self.log.open("ab") as log:
            if self._python:
                self.process = await asyncio.create_subprocess_exec(
                    *self._python, *self.words(), stdout=log, stderr=log, env=self._env
                )
            else:
                self.process = await forking.start(self.words(), output=log, environment=self._env)
        async with asyncio.timeout(20):
            while True:
                assert self.process.returncode is None, self.log.read_text()
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.write(b"GET /health/ready HTTP/1.0\r\n\r\n")
                    answer = await reader.read()
                    writer.close()
                    if b" 200 " in answer[:20]:
                        return
                await let_time_pass(0.01)

    async def end(self, how: int = signal.SIGKILL) -> int:
        """End the server by a signal, and return its exit status."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(how)
        return await asyncio.wait_for(self.process.wait(), 20)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    server = Served(tmp_path / "tasks.db")
    await server.start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.returncode is None:
            await server.end()


def _target() -> Agent:
    agent = Agent("Target", execution=Execution(direct_reply_timeout=0.05, cancel_grace=0.1))

    @agent.skill(replies="task")
    async def repeat(turn: Turn) -> object:
        """Gives back what it was given."""
        return list(turn.parts)

    @agent.skill
    async def ask_back(turn: Turn) -> str:
        """Asks a question."""
        return (await turn.ask("What?")).text

    return agent


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for hostile requests, in a thread with its own event loop."""
    store = f"sqlite:///{tmp_path_factory.mktemp('hostile') / 'tasks.db'}"
    app = parley.asgi(_target(), store=store, settings=Settings(max_body_bytes=LIMIT), drain=0.5)
    address: Future[str] = Future()
    over: Future[None] = Future()

    async def serve() -> None:
        async with serving(app) as url:
            address.set_result(url)
            await asyncio.wrap_future(over)

    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(asyncio.run, serve())
        try:
            yield address.result(20)
        finally:
            over.set_result(None)
            served.result(20)
