"""A standby takes the place of the server, and everybody goes over to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from parley.store.postgres.store import PostgresTaskStore
from tests.kit.records import addition, all_events, chunk, creation
from tests.kit.services.postgres import PostgresServer, running, standing_by

pytestmark = [pytest.mark.anyio, pytest.mark.service]


@pytest.fixture
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A server and its standby, which has taken all that was acknowledged."""
    with running() as server, standing_by(server) as standby:
        yield server, standby


async def test_no_replica_reads_from_a_server_that_another_replaced(
    servers: tuple[PostgresServer, PostgresServer],
) -> None:
    server, standby = servers
    url = (
        f"postgresql://{server.user}@127.0.0.1:{server.port},127.0.0.1:{standby.port}/postgres"
        "?target_session_attrs=read-write"
    )
    one, other = PostgresTaskStore(url), PostgresTaskStore(url)
    for store in (one, other):
        await store.open(lambda _: None)
    try:
        await one.append(creation("before"))
        # The readers of both have connections to the server now.
        for store in (one, other):
            for _ in range(20):
                assert await store.load("before") is not None
        await asyncio.to_thread(
            server.execute, "ALTER SYSTEM SET default_transaction_read_only = on"
        )
        await asyncio.to_thread(server.execute, "SELECT pg_reload_conf()")
        await asyncio.to_thread(standby.promote)
        # One writes, which tells it that there is another server; the other never does.
        await one.append(addition("before", 1, chunk("before", "a")))
        await one.append(creation("after"))
        for store in (one, other):
            for _ in range(20):
                assert await store.load("after") is not None
                assert len(await all_events(store, "before")) == 2
    finally:
        for store in (one, other):
            await store.close()
