"""Rolling restarts under load, with two releases in one fleet: callers notice nothing.

The other release is this code with another migration. The store has the later schema, as after
the Job of a deploy, and replicas of both releases work on it.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import parley
from parley import TaskState
from parley.client import RemoteAgent
from parley.client.retry import Retry
from tests.deploy.files import ROOT
from tests.deploy.proxied import HAPROXY
from tests.deploy.test_proxy import AGENT, front
from tests.kit.processes import Running, free_port
from tests.kit.waiting import let_time_pass

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.service,
    pytest.mark.skipif(not HAPROXY, reason="haproxy is not installed"),
]

RESTARTS = 20
REPLICAS = 3
ADDRESSES = [f"127.0.0.{n}" for n in range(1, 6)]
"""The addresses of the replicas, of a starting and of a draining replica."""

BOUND = 120
MIGRATIONS = "store/sql/postgres"


def next_release(folder: Path) -> Path:
    """Return the source of the next release: a copy with another migration."""
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__"))
    known = sorted((folder / "parley" / MIGRATIONS).glob("0*.sql"))
    last = int(known[-1].name[:4])
    added = known[-1].with_name(f"{last + 1:04}_later.sql")
    added.write_text(
        f"-- oldest: {last}\n-- A column.\nALTER TABLE {{schema}}.tasks ADD COLUMN later bigint;\n"
    )
    return folder


class Fleet:
    """Replicas of two releases on one store, replaced one after the other."""

    def __init__(self, store: str, folder: Path) -> None:
        self._folder = folder
        self.sources = [ROOT / "src", next_release(folder / "next")]
        self.port = free_port(ADDRESSES)
        self._options = [
            "--store",
            store,
            "--lease",
            "4s",
            "--drain",
            "1s",
            "--port",
            str(self.port),
        ]
        self._store = ["--store", store]
        self._addresses = deque(ADDRESSES)
        self._running: deque[tuple[str, Running]] = deque()
        self._ends: list[asyncio.Task[None]] = []

    def run(self, source: Path, *words: str) -> Running:
        return Running(words, self._folder, PYTHONPATH=str(source))

    async def migrate(self) -> None:
        """Bring the schema to the version of the next release, as its Job does."""
        with self.run(self.sources[1], "store", "migrate", *self._store) as job:
            assert await asyncio.to_thread(job.end) == 0, job.output

    async def start(self, source: Path) -> None:
        address = self._addresses.popleft()
        words = ["serve", AGENT, "--host", address, *self._options, "--no-migrate"]
        replica = self.run(source, *words)
        self._running.append((address, replica))
        await asyncio.to_thread(replica.until, "Ctrl-C stops the server")

    async def replace(self, source: Path) -> None:
        """Start a replica, and tell the oldest one to go, which is waited for by the next call."""
        await self.start(source)
        await asyncio.gather(*self._ends)
        self._ends = [asyncio.create_task(self._stop(*self._running.popleft()))]

    async def _stop(self, address: str, replica: Running) -> None:
        assert await asyncio.to_thread(replica.end, signal.SIGTERM) == 0, replica.stderr
        self._addresses.append(address)

    async def close(self) -> None:
        await asyncio.gather(*self._ends)
        for address, replica in self._running:
            await self._stop(address, replica)


Caller = Callable[[RemoteAgent, int], Awaitable[None]]


class Load:
    """Callers that send one message after another, each over the proxy, until ``over`` is set."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count()
        self.over = asyncio.Event()
        self.tasks: dict[str, int] = {}
        self.messages = 0
        self.resumed = 0

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for caller in (self._messages, self._sends, self._streams, self._streams):
                group.create_task(self._call(caller))
            # Its turns outlast the drain of a replica: another one begins them again.
            group.create_task(self._call(self._streams, length=25))
            yield
            self.over.set()

    async def _call(self, caller: Caller, length: int = 4) -> None:
        retries = Retry(first=0.1, limit=1.0)
        async with parley.connect(self._url, retries=retries) as agent:
            while not self.over.is_set():
                await caller(agent, length)

    async def _messages(self, agent: RemoteAgent, length: int) -> None:
        assert int(str(await agent.send("?", message_metadata={"skill": "who"})))
        self.messages += 1
        await let_time_pass(0.01)

    async def _sends(self, agent: RemoteAgent, length: int) -> None:
        text = f"{length} {next(self._numbers)}"
        answer = await agent.send(text, message_metadata={"skill": "count"})
        assert answer.task is not None
        self._ended(answer.task.id, length)

    async def _streams(self, agent: RemoteAgent, length: int) -> None:
        text = f"{length} {next(self._numbers)}"
        stream = agent.stream(text, message_metadata={"skill": "count"})
        stream.on_cut(self._cut)
        seen = [stream.seq async for _ in stream]
        assert seen == list(range(1, len(seen) + 1)), "the stream has a gap"
        assert stream.state is TaskState.COMPLETED
        self._ended(stream.task_id, length)

    def _cut(self) -> None:
        self.resumed += 1

    def _ended(self, task_id: str, length: int) -> None:
        assert task_id not in self.tasks
        self.tasks[task_id] = length


async def test_twenty_rolling_restarts_lose_nothing_and_refuse_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    fleet = Fleet(postgres_url, tmp_path)
    async with asyncio.timeout(BOUND):
        with fleet.run(fleet.sources[0], "store", "migrate", "--store", postgres_url) as job:
            assert await asyncio.to_thread(job.end) == 0
        await asyncio.gather(*[fleet.start(fleet.sources[0]) for _ in range(REPLICAS)])
        async with front(tmp_path, fleet.port, ADDRESSES) as url:
            load = Load(url)
            async with load.calling():
                await fleet.migrate()
                for number in range(RESTARTS):
                    await fleet.replace(fleet.sources[(number + 1) % 2])
            async with parley.connect(url) as agent:
                kept = [task async for task in agent.tasks(include_artifacts=True)]
        await fleet.close()
    assert {task.id for task in kept} == load.tasks.keys()
    for task in kept:
        assert task.state is TaskState.COMPLETED
        expected = "".join(f"{n} " for n in range(load.tasks[task.id]))
        assert "".join(artifact.text for artifact in task.artifacts) == expected
    assert load.messages
    assert load.resumed, "no stream was cut, so the test proves nothing"
