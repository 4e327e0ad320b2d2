"""A process is killed while it writes: what was acknowledged is there, and nothing halfway."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parley.store.events import RecordKind
from parley.store.fold import fold
from parley.store.protocols.task_log import TaskQuery
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.records import SCOPE, all_events, numbers
from tests.kit.waiting import let_time_pass

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
]

KILLS = int(os.environ.get("PARLEY_KILLS", "8"))
TASKS = 6

WRITE = """
import asyncio, os, sys
from parley.store.fold import Fold
from parley.store.sqlite.store import SqliteTaskStore
from parley.model.tasks import TaskState
from tests.kit.records import addition, chunk, creation, received, status, turn_started

async def write(store, name):
    record = await store.load(name)
    if record is None:
        folding = Fold()
        first = creation(name, received("a"))
        for event in first.events:
            folding.apply(event)
        seq, epoch = await store.append(first), 1
    else:
        folding, seq = Fold(record.task, unsaved=record.unsaved), record.seq
        epoch = await store.claim(name)
    tell(name, seq)
    window = []
    while True:
        events = [chunk(name, f"{seq} ")]
        if seq % 5 == 0:
            events += [received("b"), status(name, TaskState.WORKING, f"at {seq}")]
        if seq % 11 == 0:
            events.insert(0, turn_started(seq, f"more at {seq}"))
        for event in events:
            folding.apply(event)
        kept = folding.take_unsaved() if seq % 13 == 0 else None
        window.append(store.append(addition(name, seq, *events, artifacts=kept, epoch=epoch)))
        seq += 2 if len(events) > 2 or seq % 5 == 0 else 1
        if len(window) == 8:
            tell(name, await window.pop(0))

def tell(name, seq):
    os.write(1, f"{name} {seq}\\n".encode())

async def main():
    store = SqliteTaskStore(sys.argv[1])
    await store.open(lambda records: None)
    await asyncio.gather(*[write(store, f"t{n}") for n in range(int(sys.argv[2]))])

asyncio.run(main())
"""


@pytest.mark.L2
async def test_what_was_acknowledged_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    chance = random.Random(os.urandom(8))
    acknowledged = dict.fromkeys([f"t{n}" for n in range(TASKS)], 0)
    for _ in range(KILLS):
        await _write_and_kill(path, chance.randint(0, 300), chance.uniform(0, 0.01), acknowledged)
        store = SqliteTaskStore(path)
        await store.open(lambda records: None)
        await _check(store, acknowledged)
        await store.close()
    assert min(acknowledged.values()) > 1


async def _write_and_kill(
    path: Path, lines: int, pause: float, acknowledged: dict[str, int]
) -> None:
    """Let a process write until it said so much, and kill it a moment later."""
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITE, path, str(TASKS), stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    said = [await asyncio.wait_for(writer.stdout.readline(), 20) for _ in range(lines + 1)]
    await let_time_pass(pause)
    writer.send_signal(signal.SIGKILL)
    said += (await writer.stdout.read()).splitlines(keepends=True)
    await writer.wait()
    for line in said:
        if line.endswith(b"\n"):
            name, seq = line.split()
            acknowledged[name.decode()] = int(seq)


async def _check(store: SqliteTaskStore, acknowledged: dict[str, int]) -> None:
    for name, seq in acknowledged.items():
        record = await store.load(name)
        assert record is not None or seq == 0
        if record is None:
            continue
        events = await all_events(store, name)
        assert numbers(events) == list(range(1, record.seq + 1))
        assert record.seq >= seq
        turns = await store.private_records(name, [RecordKind.TURN])
        log = sorted([*events, *turns], key=lambda r: (r.seq, r.sub))
        assert fold([r.event for r in log]) == record.task
        # An append is there as a whole: the status of every fifth comes with its chunk.
        assert record.task.status.message is None or record.task.artifacts[0].parts
        received = await store.private_records(name, [RecordKind.RECEIVED])
        assert len(received) == record.waiting
        assert await store.waiting_messages(name, limit=len(received)) == received
    page = await store.list(TaskQuery(scope=SCOPE, artifacts=True))
    for task in page.tasks:
        record = await store.load(task.id)
        assert record is not None
        assert record.task == task
