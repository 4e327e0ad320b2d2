"""Opening an index: by its URL, from earlier versions, and after a kill."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parley.database.errors import StoreUnavailable
from parley.registry.index.postgres import PostgresRegistryIndex
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.sqlite import SqliteRegistryIndex
from parley.registry.index.urls import open_index
from parley.registry.records import EntryDraft, EntrySelection, EntryStanding, Order, Viewer
from tests.kit.services.postgres import PostgresServer
from tests.kit.waiting import let_time_pass
from tests.registry.index.making import OPERATOR, draft, found, listed, short, where

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://user:secret@host/db", "a registry index cannot be of the kind 'mysql'"),
        ("registry.db", "a registry index cannot be of the kind 'registry.db'"),
        ("sqlite:registry.db", "names no file"),
        ("sqlite:///", "names no file"),
        ("postgresql://u:secret@[host/db", "not a URL that libpq knows"),
        ("postgresql://u:secret@host/db?schema=Big", "small letters"),
    ],
)
def test_other_urls_are_refused_with_what_would_be_right(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        open_index(url)
    assert "secret" not in str(refused.value)


async def test_the_name_of_an_index_shows_no_password() -> None:
    index = open_index("postgresql://u:secret@127.0.0.1:1/db")
    assert "secret" not in index.name + repr(index)
    with pytest.raises(StoreUnavailable) as unavailable:
        await index.open()
    assert "secret" not in str(unavailable.value)


# -- indexes from earlier versions are opened, and keep their entries ------------------------------


async def test_what_an_earlier_version_kept_is_found(before: RegistryIndex) -> None:
    await before.open()
    try:
        assert await found(before, "currencies converted") == ["fx"]
        assert await found(before, "violin") == []
        assert await found(before, "violin", viewer=Viewer(tokens=("me",))) == ["mine"]
        assert await listed(before, where("tags", "finance")) == {"fx"}
        assert await listed(before, where("observed.health", "healthy")) == {"fx"}
        gone = EntrySelection(viewer=OPERATOR, standings=(EntryStanding.WITHDRAWN,))
        order = [Order(field="updatedAt", descending=True)]
        assert [short(e.identifier) for e in await before.browse(gone, order, 9, 0)] == ["old"]
        assert [source.url for source in await before.sources()] == ["https://example.com/"]
        [entry] = await before.entries_of("urn:air:example.com:agents:fx")
        await before.put([entry])
        assert await found(before, "currency") == ["fx"]
    finally:
        await before.close()


KEPT = Path(__file__).parents[2] / "data" / "registry"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def before(request: pytest.FixtureRequest, tmp_path: Path) -> RegistryIndex:
    """An index with schema version 3: four entries, one withdrawn, one restricted."""
    if request.param == "sqlite":
        file = tmp_path / "registry.db"
        file.write_bytes(gzip.decompress((KEPT / "sqlite-3.db.gz").read_bytes()))
        return SqliteRegistryIndex(file)
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.new_database()
    name = url.partition("?")[0].rpartition("/")[2]
    server.execute(gzip.decompress((KEPT / "postgres-3.sql.gz").read_bytes()).decode(), name)
    return PostgresRegistryIndex(f"{url}{'&' if '?' in url else '?'}schema=kept")


# -- a killed process: acknowledged puts are complete, and no put is partial -----------------------


KILLS = int(os.environ.get("PARLEY_KILLS", "5"))
AT_ONCE = 20

PUT = """
import asyncio, os, sys
from parley.registry.index.urls import open_index
from tests.registry.index.test_opening import batch

async def put(index, worker, number):
    while True:
        await index.put(batch(worker, number))
        os.write(1, f"{worker} {number}\\n".encode())
        number += 1

async def main():
    index = open_index(sys.argv[1])
    await index.open()
    await asyncio.gather(*[put(index, n, int(sys.argv[2])) for n in range(3)])

asyncio.run(main())
"""


def batch(worker: int, number: int) -> list[EntryDraft]:
    """The entries of one put. Some are new, the others change with each put."""
    name = f"w{worker}b{number}"
    new = [draft(f"{name}n{n}", f"violin {name}", fields={"put": (name,)}) for n in range(AT_ONCE)]
    card = b'{"version":"%d"}' % number
    return [*new, draft(f"w{worker}same", f"piano {name}", fields={"put": (name,)}, card=card)]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
async def test_puts_that_were_acknowledged_survive_a_kill_as_a_whole(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/registry.db"
    if engine == "postgres":
        url = request.getfixturevalue("postgres_url")
    chance = random.Random(os.urandom(8))
    acknowledged: set[str] = set()
    for kill in range(KILLS):
        begin = kill * 10_000
        acknowledged |= await _put_and_kill(url, begin, chance.randint(0, 12), chance.random() / 50)
        index = open_index(url)
        await index.open()
        buckets, _ = await index.facet(EntrySelection(), "put", 10_000, 1)
        counts = dict(buckets)
        assert acknowledged <= counts.keys(), "an acknowledged put is missing"
        assert set(counts.values()) <= {AT_ONCE, AT_ONCE + 1}, "a put is partial"
        changes = [entry.change for entry in await index.changes(0, 10_000)]
        assert len(changes) == len(set(changes)) == await index.count(EntrySelection())
        one = next(iter(acknowledged))
        assert len(await found(index, one, where("put", one))) >= AT_ONCE, "an entry is not found"
        versions = await index.versions("urn:air:example.com:agents:w0same")
        assert all(version.difference for version in versions[:-1])
        await index.close()


async def _put_and_kill(url: str, begin: int, lines: int, pause: float) -> set[str]:
    """Run a process that puts until it has printed a number of lines; kill it a moment later."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PUT, url, str(begin), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    said = [await asyncio.wait_for(process.stdout.readline(), 30) for _ in range(lines + 1)]
    await let_time_pass(pause)
    process.send_signal(signal.SIGKILL)
    said += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    whole = [line.split() for line in said if line.endswith(b"\n")]
    return {f"w{worker.decode()}b{number.decode()}" for worker, number in whole}
