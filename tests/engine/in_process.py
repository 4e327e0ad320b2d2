"""Agents in process: their service on each store, without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from parley.agent.agent import Agent
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.claims import SHORTEST_LEASE, Lease
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.engine.fleet import Fleet, MortalStore
from tests.engine.talk import Talk


@pytest.fixture(params=["memory", "sqlite"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], TaskStore]:
    """A maker of stores: SQLite stores share one file; each memory store has its own data."""
    if request.param == "sqlite":
        return lambda: SqliteTaskStore(tmp_path / "tasks.db", synchronous="OFF")
    return MemoryTaskStore


@pytest.fixture
def talk(new_store: Callable[[], TaskStore]) -> Callable[..., Any]:
    """A maker of hosts: ``async with talk(agent) as caller``."""

    @asynccontextmanager
    async def opened(agent: Agent, store: TaskStore | None = None, drain: float = 0.0) -> Any:
        host = Host(placed(agent), store or new_store(), ServerOptions(drain=drain))
        await host.start()
        try:
            yield Talk(host.services[""], host)
        finally:
            await host.stop()

    return opened


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.service)])
def new_replica(request: pytest.FixtureRequest) -> Callable[[], TaskStore]:
    """A maker of stores for replicas that share one log, with a short lease."""
    lease = Lease(SHORTEST_LEASE)
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        return lambda: PostgresTaskStore(url, lease=lease)
    logs = MemoryLogs()
    return lambda: MortalStore(logs=logs, lease=lease)


@pytest.fixture
async def fleet(new_replica: Callable[[], TaskStore]) -> AsyncIterator[Fleet]:
    """A fleet without replicas: ``await fleet.add(agent)``."""
    fleet = Fleet(new_replica)
    yield fleet
    await fleet.close()


@pytest.fixture
async def mortal_fleet() -> AsyncIterator[Fleet]:
    """A fleet with replicas that a test can kill or cut off."""
    logs = MemoryLogs()
    fleet = Fleet(lambda: MortalStore(logs=logs, lease=Lease(SHORTEST_LEASE)))
    yield fleet
    await fleet.close()
