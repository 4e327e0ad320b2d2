"""A process is killed while it puts: acknowledged puts are there, and none is there in part."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parley.registry.index.urls import open_index
from parley.registry.records import EntryDraft, EntrySelection
from tests.kit.waiting import let_time_pass
from tests.registry.index.making import draft, found, where

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
]

KILLS = int(os.environ.get("PARLEY_KILLS", "5"))
AT_ONCE = 20

PUT = """
import asyncio, os, sys
from parley.registry.index.urls import open_index
from tests.registry.index.test_kill import batch

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
    """Entries of one put. Some are new, the others change with each put."""
    name = f"w{worker}b{number}"
    new = [draft(f"{name}n{n}", f"violin {name}", fields={"put": (name,)}) for n in range(AT_ONCE)]
    card = b'{"version":"%d"}' % number
    return [*new, draft(f"w{worker}same", f"piano {name}", fields={"put": (name,)}, card=card)]


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
        assert acknowledged <= counts.keys(), "what was acknowledged is there"
        assert set(counts.values()) <= {AT_ONCE, AT_ONCE + 1}, "a put is there as a whole"
        changes = [entry.change for entry in await index.changes(0, 10_000)]
        assert len(changes) == len(set(changes)) == await index.count(EntrySelection())
        one = next(iter(acknowledged))
        assert len(await found(index, one, where("put", one))) >= AT_ONCE, "and is found"
        versions = await index.versions("urn:air:example.com:agents:w0same")
        assert all(version.difference for version in versions[:-1])
        await index.close()


async def _put_and_kill(url: str, begin: int, lines: int, pause: float) -> set[str]:
    """Let a process put until it said so much, and kill it a moment later."""
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
