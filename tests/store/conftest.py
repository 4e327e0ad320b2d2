"""The stores, which all satisfy one contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from parley.store.bus.subscriptions import LocalHints
from parley.store.events import LoggedEvent
from parley.store.memory import MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.waiting import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000)


@pytest.fixture
def hints() -> LocalHints:
    return LocalHints()


@pytest.fixture
def committed() -> list[LoggedEvent]:
    """Every record that the store committed, in order."""
    return []


@pytest.fixture
def on_commit(
    committed: list[LoggedEvent], hints: LocalHints
) -> Callable[[Sequence[LoggedEvent]], None]:
    def on_commit(records: Sequence[LoggedEvent]) -> None:
        committed.extend(records)
        hints.publish(records)

    return on_commit


@pytest.fixture
async def sqlite(
    tmp_path: Path, clock: Clock, on_commit: Callable[[Sequence[LoggedEvent]], None]
) -> AsyncIterator[SqliteTaskStore]:
    store = SqliteTaskStore(tmp_path / "tasks.db", clock=clock, busy_timeout=0.05)
    await store.open(on_commit)
    yield store
    await store.close()


class PostgresAtOurTime(PostgresTaskStore):
    """A store that does not correct the clock set by a test."""

    def now(self) -> int:
        return self._clock()


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.service)])
async def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    clock: Clock,
    on_commit: Callable[[Sequence[LoggedEvent]], None],
) -> AsyncIterator[TaskStore]:
    store: TaskStore
    if request.param == "memory":
        store = MemoryTaskStore(clock=clock)
    elif request.param == "sqlite":
        store = SqliteTaskStore(tmp_path / "tasks.db", clock=clock)
    else:
        store = PostgresAtOurTime(request.getfixturevalue("postgres_url"), clock=clock)
    await store.open(on_commit)
    yield store
    await store.close()
