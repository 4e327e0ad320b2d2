"""Small tables: of other packages, of usage, and of the amounts of limits, in every store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from msgspec.structs import replace

from parley.security.limits.usage import QuotaAsk, UsageQuery, UsageRow
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.tables import TooManyApiKeys
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.tables import EXPIRED_PER_PUT, MAX_ROW_BYTES, PAGE, TableRows
from parley.store.task_store import TaskStore
from tests.kit.records import SCOPE, creation
from tests.kit.services.postgres import PostgresServer
from tests.kit.services.proxy import line
from tests.kit.waiting import Clock, let_time_pass
from tests.store.postgres.test_store import opened

pytestmark = pytest.mark.anyio


NAME = "fleet_tools"


async def test_a_row_is_put_and_removed(store: TaskStore) -> None:
    tables = store.tables(NAME)
    assert await tables.get("visits", "ada") is None
    assert await tables.put("visits", "ada", b"\x00one")
    assert await tables.put("visits", "ada", b"")
    assert await tables.get("visits", "ada") == b""
    assert await tables.remove("visits", "ada")
    assert not await tables.remove("visits", "ada")
    assert await tables.get("visits", "ada") is None


async def test_a_row_is_put_only_in_place_of_the_expected_one(store: TaskStore) -> None:
    tables = store.tables(NAME)
    assert not await tables.put("visits", "ada", b"1", expected=b"0")
    assert await tables.put("visits", "ada", b"1", expected=None)
    assert not await tables.put("visits", "ada", b"2", expected=None)
    assert not await tables.remove("visits", "ada", expected=b"2")
    assert await tables.put("visits", "ada", b"2", expected=b"1")
    assert await tables.get("visits", "ada") == b"2"
    assert not await tables.remove("visits", "bob", expected=None)
    assert await tables.remove("visits", "ada", expected=b"2")


async def test_a_row_is_gone_when_it_expires(store: TaskStore, clock: Clock) -> None:
    tables = store.tables(NAME)
    count = EXPIRED_PER_PUT + 10
    for n in range(count):
        await tables.put("t", f"{n:03}", b"", expires_at=clock.now + 10)
    await tables.put("t", "longer", b"", expires_at=clock.now + 10)
    await tables.put("t", "longer", b"", expires_at=clock.now + 100)
    await tables.put("t", "ever", b"", expires_at=clock.now + 10)
    await tables.put("t", "ever", b"")
    clock.now += 9
    assert len(await tables.scan("t")) == count + 2
    clock.now += 1
    assert [key for key, _ in await tables.scan("t")] == ["ever", "longer"]
    assert await tables.get("t", "000") is None
    assert not await tables.remove("t", "000")
    assert await tables.put("t", "000", b"", expected=None)


async def test_a_put_removes_expired_rows(sqlite: SqliteTaskStore, clock: Clock) -> None:
    for key in ("a", "b", "c"):
        clock.now += 1
        await sqlite.tables(NAME).put("t", key, b"", expires_at=clock.now + 1)
    rows = await sqlite._read(lambda c: c.execute("SELECT count(*) FROM rows").fetchall())
    assert rows == [(1,)]


async def test_expired_rows_take_no_room(sqlite: SqliteTaskStore, clock: Clock) -> None:
    tables = sqlite.tables(NAME)
    for n in range(250):
        await tables.put("t", str(n), b"", expires_at=clock.now + 1)
    clock.now += 1
    for n in range(3):
        await tables.put("t", f"later {n}", b"", expires_at=clock.now + 1)
    [(left,)] = await sqlite._read(lambda c: c.execute("SELECT count(*) FROM rows").fetchall())
    assert left == 3


@pytest.mark.parametrize("name", ["parley", "", "Fleet", "a.b", "1st", "x" * 64, None])
async def test_a_namespace_is_the_name_of_a_package(store: TaskStore, name: str) -> None:
    with pytest.raises(ValueError, match="such as fleet_tools, but not parley"):
        store.tables(name)
    if name != "parley":
        with pytest.raises(ValueError, match="the name of a table"):
            await store.tables(NAME).get(name, "key")


async def test_what_cannot_be_a_row_is_refused(store: TaskStore) -> None:
    tables = store.tables(NAME)
    for key in ("", "a\0b", "\ud800", "x" * 10_000):
        for asked in (tables.put("t", key, b""), tables.get("t", key), tables.remove("t", key)):
            with pytest.raises(ValueError, match="the key of a row"):
                await asked
    with pytest.raises(ValueError, match=f"up to {MAX_ROW_BYTES} bytes"):
        await tables.put("t", "k", bytes(MAX_ROW_BYTES + 1))
    assert await tables.put("t", "k", bytes(MAX_ROW_BYTES))
    assert len(await tables.scan("t", limit=10 * PAGE)) == 1


async def test_a_change_that_is_refused_leaves_nothing_and_others_continue(
    store: TaskStore,
) -> None:
    """They may share a group with it."""

    def refuse(rows: TableRows) -> None:
        raise TooManyApiKeys

    tables = store.tables(NAME)
    changes = [
        store.append(creation("t")),
        asyncio.ensure_future(tables.put("t", "one", b"1")),
        asyncio.ensure_future(store.change_rows(refuse)),
        asyncio.ensure_future(tables.put("t", "two", b"2")),
        asyncio.ensure_future(store.set_value(SCOPE, "c", "k", b"3")),
    ]
    done = await asyncio.gather(*changes, return_exceptions=True)
    assert [type(each) for each in done if isinstance(each, Exception)] == [TooManyApiKeys]
    assert [row for _, row in await tables.scan("t")] == [b"1", b"2"]
    assert await store.load("t") is not None
    assert await store.get_value(SCOPE, "c", "k") == b"3"


@pytest.mark.parametrize("kind", ["memory", pytest.param("postgres", marks=pytest.mark.service)])
async def test_replicas_that_expect_a_row_at_once_lose_nothing(
    kind: str, request: pytest.FixtureRequest
) -> None:
    logs = MemoryLogs()
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else ""
    stores = [PostgresTaskStore(url) if url else MemoryTaskStore(logs=logs) for _ in range(3)]
    for store in stores:
        await store.open(lambda records: None)

    async def add(store: TaskStore) -> None:
        tables = store.tables(NAME)
        for _ in range(20):
            is_added = False
            while not is_added:
                found = await tables.get("t", "k")
                value = str(int(found or 0) + 1).encode()
                is_added = await tables.put("t", "k", value, expected=found)

    adding: list[Awaitable[None]] = [add(store) for store in stores]
    await asyncio.gather(*adding)
    assert await stores[0].tables(NAME).get("t", "k") == b"60"
    for store in stores:
        await store.close()


@pytest.mark.service
async def test_a_change_whose_answer_is_lost_counts_once(postgres: PostgresServer) -> None:
    async with line(postgres.port) as between:
        url = postgres.new_url()
        async with (
            opened(url.replace(f":{postgres.port}/", f":{between.port}/")) as store,
            opened(url) as other,
        ):
            before = None
            for n in range(
                28
            ):  # interrupted at another step of the transaction each time, including its end
                value = str(n).encode()
                between.delay = 0.02
                putting = asyncio.ensure_future(
                    store.tables(NAME).put("t", "k", value, expected=before)
                )
                await let_time_pass(0.012 * n)
                between.cut()
                between.delay = 0.0
                assert await putting
                assert await other.tables(NAME).get("t", "k") == value
                before = value


# -- usage and the amounts of limits, in every store -----------------------------------------------


ASK = QuotaAsk(key="k", slot=7, oldest=5, amount=10, wanted=4, ends_at=1_100_000)
ROW = UsageRow(day=20_000, agent="a", tenant="t", caller="ada", skill="s", requests=1, run_ms=5)


async def test_an_amount_is_given_once(store: TaskStore) -> None:
    asks = [store.take_quotas([ASK]) for _ in range(5)]
    given = [grants[0].given for grants in await asyncio.gather(*asks)]
    assert sorted(given) == [0, 0, 2, 4, 4]
    [last] = await store.take_quotas([replace(ASK, wanted=1)])
    assert (last.given, last.taken, last.first) == (0, 10, 7)


async def test_one_call_takes_of_one_amount_twice(store: TaskStore) -> None:
    grants = await store.take_quotas([ASK, replace(ASK, key="other"), replace(ASK, wanted=9)])
    assert [grant.given for grant in grants] == [4, 4, 6]


async def test_a_slot_gives_back_what_was_taken_of_it_and_no_more(store: TaskStore) -> None:
    grants = await store.take_quotas([replace(ASK, wanted=n) for n in (4, -50, 50, -3, 9)])
    found = [(grant.given, grant.taken) for grant in grants]
    assert found == [(4, 4), (-4, 0), (10, 10), (-3, 7), (3, 10)]


async def test_usage_adds_up(store: TaskStore) -> None:
    await store.add_usage([ROW, replace(ROW, skill="")])
    await store.add_usage([replace(ROW, requests=2, output_bytes=10**12)])
    found = await store.usage(UsageQuery())
    assert found == [
        replace(ROW, skill=""),
        replace(ROW, requests=3, run_ms=10, output_bytes=10**12),
    ]


async def test_a_sum_is_of_all_rows_that_are_selected(store: TaskStore) -> None:
    rows = [replace(ROW, tenant=f"t{n}") for n in range(30)]
    await store.add_usage(rows)
    await store.add_usage([replace(ROW, day=ROW.day + 1)])
    total = await store.sum_usage(UsageQuery(since=ROW.day, until=ROW.day, limit=3))
    assert (total.requests, total.output_bytes) == (30 * ROW.requests, 30 * ROW.output_bytes)
    assert (await store.sum_usage(UsageQuery(caller="nobody"))).requests == 0
