"""Values of contexts on PostgreSQL: set by several replicas, over connections that break."""

from __future__ import annotations

import asyncio

import pytest

from parley.store.postgres.store import PostgresTaskStore
from tests.kit.records import SCOPE
from tests.kit.services.postgres import PostgresServer
from tests.kit.services.proxy import line
from tests.kit.waiting import let_time_pass
from tests.store.postgres.test_store import ROUNDS, opened

pytestmark = [pytest.mark.anyio, pytest.mark.service]


async def test_comparisons_whose_answer_is_lost_are_recovered(postgres: PostgresServer) -> None:
    """What was kept counts once, and is not taken for a value that somebody else has set."""
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
