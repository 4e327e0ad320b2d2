"""The indexes, which all satisfy one contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parley.registry.index.postgres import PostgresRegistryIndex
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.sqlite import SqliteRegistryIndex
from tests.kit.waiting import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
async def index(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> AsyncIterator[RegistryIndex]:
    index: RegistryIndex
    if request.param == "sqlite":
        index = SqliteRegistryIndex(tmp_path / "registry.db", clock=clock)
    else:
        index = PostgresRegistryIndex(request.getfixturevalue("postgres_url"), clock=clock)
    await index.open()
    yield index
    await index.close()
