"""Fixtures that serve agents in this process and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import parley
from parley.server.run import serving
from tests.engine.in_process import fleet as fleet
from tests.engine.in_process import mortal_fleet as mortal_fleet
from tests.engine.in_process import new_replica as new_replica
from tests.engine.in_process import new_store as new_store
from tests.engine.in_process import talk as talk


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Serves agents on each kind of store; on PostgreSQL two replicas share the store."""

    @asynccontextmanager
    async def served(*args: Any, **options: Any) -> AsyncIterator[list[str]]:
        store, count = "memory:", 1
        if request.param == "sqlite":
            store = f"sqlite:///{tmp_path / 'tasks.db'}"
        elif request.param == "postgres":
            store, count = request.getfixturevalue("postgres_url"), 2
        async with AsyncExitStack() as stack:
            urls = []
            for _ in range(count):
                app = parley.asgi(*args, store=store, drain=0.0, **options)
                urls.append(await stack.enter_async_context(serving(app)))
            yield urls

    return served
