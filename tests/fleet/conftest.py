"""Fleets on their own services, which tests may kill."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fleet import fleet
from tests.fleet.fleet import Fleet
from tests.fleet.load import Load
from tests.fleet.official import official_processes, official_readers
from tests.kit.services import postgres as postgresql
from tests.kit.services.postgres import PostgresServer
from tests.kit.services.proxy import FaultyProxy, line

FleetOf = Callable[..., AbstractAsyncContextManager[Fleet]]
Officials = Callable[[Fleet, Load, int], AbstractAsyncContextManager[None]]


@pytest.fixture(scope="session")
async def officials() -> AsyncIterator[Officials]:
    """A function that runs the official clients on a fleet."""
    async with official_processes() as processes:
        yield partial(official_readers, processes)


@pytest.fixture(scope="session")
def mortal_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that tests may kill, if they start it again."""
    with postgresql.running() as server:
        yield server


@pytest.fixture
def fleet_of(mortal_postgres: PostgresServer, tmp_path: Path) -> FleetOf:
    """A maker of fleets on PostgreSQL: with this many replicas, and hints by PostgreSQL or Redis
    (its own, or the URL of another).

    ``lines`` puts a proxy between the replicas and each service, and between callers and the door.
    """

    @asynccontextmanager
    async def made(
        count: int,
        *,
        store: str = "",
        bus: str = "postgres",
        lines: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> AsyncIterator[Fleet]:
        async with AsyncExitStack() as stack:
            put: list[FaultyProxy] = []

            async def through(url: str, port: int) -> str:
                if not lines:
                    return url
                put.append(await stack.enter_async_context(line(port)))
                assert f":{port}" in url
                return url.replace(f":{port}", f":{put[-1].port}", 1)

            store = store or mortal_postgres.new_database()
            options["through"] = await through(store, mortal_postgres.port)
            redis = None
            if bus == "redis":
                from tests.kit.services.redis import running

                redis = stack.enter_context(running())
                options["bus"] = await through(redis.url, redis.port)
            elif bus != "postgres":
                options["bus"] = bus
            one = await stack.enter_async_context(
                fleet.fleet_of(count, tmp_path, store=store, seed=seed, **options)
            )
            one.postgres, one.redis = mortal_postgres, redis
            one.url = await through(one.door.url, one.door.port)
            one.lines = put
            yield one

    return made
