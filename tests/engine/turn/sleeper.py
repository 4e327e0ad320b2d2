"""A caller of turns that sleep, on every store, with a clock that tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from parley import Agent, Task
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.store.memory import MemoryTaskStore
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.engine.fleet import get
from tests.engine.talk import Talk
from tests.kit.waiting import Clock, until

DAY = timedelta(days=1)
MS = 86_400_000


@pytest.fixture
def clock() -> Clock:
    return Clock(1_700_000_000_000)


class Sleeper(Talk):
    """A caller of an agent with a clock that tests move."""

    clock: Clock

    def pass_time(self, ms: int) -> None:
        self.clock.now += ms
        self.host._maintenance.wake()

    async def asleep(self, task: Task | str) -> int:
        """Wait until a task sleeps; return its wake-up time."""
        task_id = task if isinstance(task, str) else task.id
        found: list[int] = []

        async def sleeps() -> bool:
            record = await self.store.load(task_id)
            if record is not None and record.wakes_at is not None:
                found[:] = [record.wakes_at]
            return bool(found) and not self.executor.is_running(task_id)

        await until(sleeps, 20)
        return found[0]

    async def ended(self, task: Task) -> Task:
        await until(lambda: self._has_ended(task.id), 20)
        return await get(self, task.id)  # type: ignore[arg-type]

    async def _has_ended(self, task_id: str) -> bool:
        record = await self.store.load(task_id)
        return record is not None and record.task.state.is_terminal

    async def begin(self, said: str = "go", **options: Any) -> Task:
        return await self.task(said, return_immediately=True, **options)

    async def complete(self, key: str, value: bytes = b"null") -> bool:
        return await self.store.complete_event(self.executor.agent, key, value)


Open = Callable[..., Any]


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def new_store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> Callable[[], TaskStore]:
    """A maker of stores that share their data and use the test's clock."""
    if request.param == "sqlite":
        return lambda: SqliteTaskStore(tmp_path / "tasks.db", synchronous="NORMAL", clock=clock)
    if request.param == "postgres":
        from tests.store.conftest import PostgresAtOurTime

        url = request.getfixturevalue("postgres_url")
        return lambda: PostgresAtOurTime(url, clock=clock)
    store = MemoryTaskStore(clock=clock)
    return lambda: store


@pytest.fixture
def opened(new_store: Callable[[], TaskStore], clock: Clock) -> Open:
    """A maker of hosts: ``async with opened(agent) as caller``."""

    @asynccontextmanager
    async def opened(agent: Agent) -> AsyncIterator[Sleeper]:
        host = Host(placed(agent), new_store(), ServerOptions(drain=0.0))
        await host.start()
        caller = Sleeper(host.services[""], host)
        caller.clock = clock
        try:
            yield caller
        finally:
            await host.stop()

    return opened


def said(task: Task) -> str:
    message = task.status.message
    return message.text if message is not None else "".join([a.text for a in task.artifacts])


def results(task: Task) -> str:
    return " ".join([part.text or "" for a in task.artifacts for part in a.parts])
