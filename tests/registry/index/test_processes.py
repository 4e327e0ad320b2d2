"""Several processes share an index in PostgreSQL."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter

import psycopg
import pytest

from parley.database.postgres.connection import Address
from parley.registry.index.postgres import PostgresRegistryIndex
from parley.registry.records import EntrySelection, EntryStanding, Source, SourceKind
from tests.registry.index.making import CATALOG, OPERATOR, draft, found, identifier

pytestmark = [pytest.mark.anyio, pytest.mark.service]


CLAIM = """
import asyncio, sys
from parley.registry.index.urls import open_index

async def main():
    index = open_index(sys.argv[1])
    await index.open()
    print("ready", flush=True)
    sys.stdin.readline()
    while claimed := [*await index.claim_sources(3, 600), *await index.claim_probes(3, 600)]:
        for each in claimed:
            print(each.url, flush=True)
    await index.close()

asyncio.run(main())
"""


SOURCES = 60


async def test_each_process_finds_what_another_has_stored_and_nothing_it_has_forgotten(
    postgres_url: str,
) -> None:
    now = 1_000
    one, other = [PostgresRegistryIndex(postgres_url, clock=lambda: now) for _ in range(2)]
    for index in (one, other):
        await index.open()
    await one.put([draft("fx", "currency"), draft("sky", "weather")])
    assert await found(other, "currency") == ["fx"]
    await other.put([draft("fx", "violin")])
    assert await found(one, "currency") == []
    assert await found(one, "violin") == ["fx"]
    await one.withdraw(CATALOG, [identifier("sky")], "gone")
    gone = EntrySelection(viewer=OPERATOR, standings=(EntryStanding.WITHDRAWN,))
    assert await found(other, "violin") == []
    assert await other.count(gone) == 1
    assert await one.forget(now + 1, 10) == 1
    assert await other.browse(gone, (), 1, 0) == []
    assert await other.count(gone) == 0
    for index in (one, other):
        await index.close()


async def test_processes_that_claim_at_once_share_the_work(postgres_url: str) -> None:
    index = PostgresRegistryIndex(postgres_url)
    await index.open()
    await index.add_sources(
        [Source(url=f"https://s{n}.example/", kind=SourceKind.SITE) for n in range(SOURCES)]
    )
    await index.put([draft(f"n{n}") for n in range(SOURCES)])
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLAIM, postgres_url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 30) == b"ready\n"
    said = await asyncio.gather(*[process.communicate(b"go\n") for process in processes])
    claimed = Counter(url for out, _ in said for url in out.decode().split())
    assert len(claimed) == 2 * SOURCES
    assert set(claimed.values()) == {1}, "each is claimed by one process"
    assert await index.claim_sources(1, 60.0) == []
    await index.close()


async def test_who_follows_changes_misses_none_that_commits_late(postgres_url: str) -> None:
    """Without an order of commits, a reader would pass numbers that are committed later."""
    writers = [PostgresRegistryIndex(postgres_url) for _ in range(3)]
    reader = PostgresRegistryIndex(postgres_url)
    for index in (*writers, reader):
        await index.open()
    is_done = False
    seen: list[int] = []

    async def follow() -> None:
        after = 0
        while True:
            was_done = is_done
            entries = await reader.changes(after, 7)
            for entry in entries:
                assert entry.change > after
                after = entry.change
                seen.append(entry.key)
            if was_done and not entries:
                return

    async def write(number: int) -> None:
        for put in range(25):
            size = 1 if put % 2 else 40
            await writers[number].put([draft(f"w{number}p{put}n{n}") for n in range(size)])

    following = asyncio.create_task(follow())
    await asyncio.gather(*[write(number) for number in range(3)])
    is_done = True
    await following
    assert len(set(seen)) == await reader.count(EntrySelection()) == 3 * (13 * 40 + 12)
    for index in (*writers, reader):
        await index.close()


async def test_changes_that_the_database_has_lost_are_found_no_more(postgres_url: str) -> None:
    """A standby that takes over may lack the last commits, and gives their numbers again."""
    index = PostgresRegistryIndex(postgres_url)
    await index.open()
    await index.put([draft("fx", "currency"), draft("sky", "weather")])
    await index.put([draft("lost", "violin")])
    assert await found(index, "violin") == ["lost"]
    address = Address.of(postgres_url)
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        schema = address.schema
        connection.execute(f"DELETE FROM {schema}.entries WHERE identifier LIKE '%:lost'")
        connection.execute(f"UPDATE {schema}.counters SET value = value - 1 WHERE name = 'change'")
    await index.catch_up()
    await index.put([draft("new", "piano")])
    assert await found(index, "piano") == ["new"]
    assert await found(index, "violin") == []
    assert await found(index, "currency") == ["fx"]
    await index.close()
