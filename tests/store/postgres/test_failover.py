"""Failover to a standby, and values of contexts over interrupted connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from parley.database.errors import StoreError
from parley.database.postgres import connection
from parley.store.postgres.store import PostgresTaskStore
from tests.kit.records import SCOPE, addition, all_events, chunk, creation
from tests.kit.services.postgres import PostgresServer, either, running, standing_by
from tests.kit.services.proxy import line
from tests.kit.waiting import let_time_pass
from tests.store.postgres.test_store import ROUNDS, opened

pytestmark = [pytest.mark.anyio, pytest.mark.service]


@pytest.fixture
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A server and its standby, which has all acknowledged writes."""
    with running() as server, standing_by(server) as standby:
        yield server, standby


async def test_no_replica_reads_from_a_server_that_another_replaced(
    servers: tuple[PostgresServer, PostgresServer],
) -> None:
    server, standby = servers
    url = either(server, standby)
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
        # One replica writes, and so detects the other server; the other replica never writes.
        await one.append(addition("before", 1, chunk("before", "a")))
        await one.append(creation("after"))
        for store in (one, other):
            for _ in range(20):
                assert await store.load("after") is not None
                assert len(await all_events(store, "before")) == 2
    finally:
        for store in (one, other):
            await store.close()


async def test_a_replaced_server_that_comes_back_is_passed_over(
    servers: tuple[PostgresServer, PostgresServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes writes, and lacks what was written since."""
    server, standby = servers
    url = either(server, standby)
    async with asyncio.timeout(30), opened(url) as store:
        await store.append(creation("before"))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(standby.promote)
        await store.append(creation("after"))
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(standby.cut_connections)
        await store.append(addition("after", 1, chunk("after", "a")))
        monkeypatch.setattr(connection, "_newest", {})  # as in a process that begins now
        async with opened(url) as other:
            assert len(await all_events(other, "after")) == 2
        # Where it is the only server there is, it is rejected.
        alone = server.url()
        known = next(iter(connection._newest.values()))
        monkeypatch.setitem(connection._newest, connection.Address.of(alone).conninfo, known)
        with pytest.raises(StoreError, match="was replaced by the promotion of another"):
            async with opened(alone):
                pass


# -- values of contexts on PostgreSQL: set by several replicas, over interrupted connections -------


async def test_comparisons_whose_answer_is_lost_are_recovered(postgres: PostgresServer) -> None:
    """A durable write counts once, and is not mistaken for another caller's value."""
    where = (SCOPE, "c", "k")
    async with line(postgres.port) as between:
        url = postgres.new_url()
        async with (
            opened(url.replace(f":{postgres.port}/", f":{between.port}/")) as store,
            opened(url) as other,
        ):
            before = None
            for n in range(ROUNDS):
                for expected, is_right in ((before, True), (b"other", False)):
                    value = str(n).encode()
                    between.delay = 0.15
                    setting = asyncio.ensure_future(store.compare_and_set(*where, expected, value))
                    await let_time_pass(0.2)
                    between.cut()
                    between.delay = 0.0
                    assert await setting is is_right
                    assert await other.get_value(*where) == value
                before = value
            assert await store.compare_and_set(*where, before, None)
            assert await other.get_value(*where) is None


@pytest.mark.parametrize("first", [None, b"0"])
async def test_replicas_that_compare_at_once_lose_nothing(
    postgres: PostgresServer, first: bytes | None
) -> None:
    where = (SCOPE, "c", "k")
    url = postgres.new_url()
    async with opened(url) as one, opened(url) as two, opened(url) as three:
        await one.set_value(*where, first)

        async def add(store: PostgresTaskStore) -> None:
            for _ in range(20):
                while True:
                    found = await store.get_value(*where)
                    value = str(int(found or 0) + 1).encode()
                    if await store.compare_and_set(*where, found, value):
                        break

        await asyncio.gather(*(add(store) for store in (one, two, three)))
        assert await one.get_value(*where) == b"60"
