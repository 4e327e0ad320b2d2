"""Measures the task stores: ``python benchmarks/store.py [seconds per figure]``.

Prints rates, and what each is of what plain ``sqlite3`` does with the same rows in the same run. A
"busy" figure has an event loop that is never idle: other callbacks take what time is left.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from parley.model.parts import Artifact, Part
from parley.model.struct import Timestamp, encode
from parley.model.tasks import (
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.store.bus.subscriptions import LocalHints
from parley.store.events import Scope
from parley.store.fold import pieces_of
from parley.store.follow import follow
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.task_log import Append, TaskQuery
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
SCOPE = Scope("an agent", "", "someone@example.org")
IN_FLIGHT = 64
STREAMS = 8
READERS = 200


def chunk(task_id: str) -> TaskArtifactUpdateEvent:
    part = Part(text="a few words, as a model says them")
    return TaskArtifactUpdateEvent(
        task_id=task_id,
        context_id=task_id,
        artifact=Artifact(artifact_id="text", parts=(part,)),
        append=True,
    )


def status(task_id: str, state: TaskState) -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(
        task_id=task_id,
        context_id=task_id,
        status=TaskStatus(state=state, timestamp=Timestamp.now()),
    )


def creation(task_id: str) -> Append:
    submitted = TaskStatus(state=TaskState.SUBMITTED, timestamp=Timestamp.now())
    task = Task(id=task_id, context_id=task_id, status=submitted)
    return Append(
        task_id=task_id, events=[task], expected_seq=0, turn=1, scope=SCOPE, context_id=task_id
    )


async def create(store: TaskStore, until: float) -> int:
    """Create tasks, so many at a time."""
    created = 0

    async def one_after_the_other() -> None:
        nonlocal created
        while time.perf_counter() < until:
            await store.append(creation(str(uuid.uuid4())))
            created += 1

    await asyncio.gather(*[one_after_the_other() for _ in range(IN_FLIGHT)])
    return created


async def stream(store: TaskStore, until: float) -> int:
    """Write a few streams, each with a window of appends under way."""
    written = 0

    async def write() -> None:
        nonlocal written
        task_id = str(uuid.uuid4())
        await store.append(creation(task_id))
        window: deque[object] = deque()
        for seq in itertools.count(1):
            append = Append(task_id=task_id, events=[chunk(task_id)], expected_seq=seq, turn=1)
            window.append(store.append(append))
            if len(window) >= IN_FLIGHT:
                await window.popleft()
                written += 1
            if seq % IN_FLIGHT == 0:
                await asyncio.sleep(0)
                if time.perf_counter() > until:
                    break
        for append in window:
            await append
            written += 1

    await asyncio.gather(*[write() for _ in range(STREAMS)])
    return written


async def whole_tasks(store: TaskStore, until: float) -> int:
    """Take tasks from submitted to completed, with one artifact, which is stored at the end."""
    done = 0

    async def one_after_the_other() -> None:
        nonlocal done
        while time.perf_counter() < until:
            task_id = str(uuid.uuid4())
            await store.append(creation(task_id))
            events = [status(task_id, TaskState.WORKING), chunk(task_id)]
            stored = pieces_of([events[1].artifact])
            end = status(task_id, TaskState.COMPLETED)
            for seq, append in ((1, events[:1]), (2, events[1:]), (3, [end])):
                await store.append(
                    Append(
                        task_id=task_id,
                        events=append,
                        expected_seq=seq,
                        turn=1,
                        artifacts=stored if append == [end] else None,
                    )
                )
            done += 1

    await asyncio.gather(*[one_after_the_other() for _ in range(IN_FLIGHT)])
    return done


async def load(store: TaskStore, until: float) -> int:
    """Load tasks, a few at a time."""
    ids = [str(uuid.uuid4()) for _ in range(100)]
    for task_id in ids:
        await store.append(creation(task_id))
    loaded = 0

    async def one_after_the_other() -> None:
        nonlocal loaded
        for task_id in itertools.cycle(ids):
            await store.load(task_id)
            loaded += 1
            if loaded % 16 == 0:
                await asyncio.sleep(0)
            if time.perf_counter() > until:
                break

    await asyncio.gather(*[one_after_the_other() for _ in range(8)])
    return loaded


async def page(store: TaskStore, until: float) -> int:
    """List the first page of 2,000 tasks."""
    await asyncio.gather(*[store.append(creation(str(uuid.uuid4()))) for _ in range(2000)])
    pages = 0
    while time.perf_counter() < until + SECONDS / 2:
        await store.list(TaskQuery(scope=SCOPE))
        pages += 1
        await asyncio.sleep(0)
    return pages


async def deliver(store: TaskStore, hints: LocalHints, until: float) -> int:
    """Write one stream with many readers; counts what they got."""
    task_id = str(uuid.uuid4())
    await store.append(creation(task_id))
    got = 0

    async def read() -> None:
        nonlocal got
        async with aclosing(follow(store, hints, task_id, 0)) as batches:
            async for events in batches:
                got += len(events)

    async with asyncio.TaskGroup() as group:
        for _ in range(READERS):
            group.create_task(read())
        seq = 1
        while time.perf_counter() < until:
            events = [chunk(task_id) for _ in range(16)]
            await store.append(Append(task_id=task_id, events=events, expected_seq=seq, turn=1))
            await asyncio.sleep(0)
            seq += 16
        end = [status(task_id, TaskState.COMPLETED)]
        await store.append(Append(task_id=task_id, events=end, expected_seq=seq, turn=1))
    return got


@asynccontextmanager
async def busy_loop() -> AsyncIterator[None]:
    is_over = False

    async def spin() -> None:
        while not is_over:
            for _ in range(400):
                pass
            await asyncio.sleep(0)

    spinning = [asyncio.create_task(spin()) for _ in range(4)]
    try:
        yield
    finally:
        is_over = True
        await asyncio.gather(*spinning)


def baseline(path: Path, rows_each: int) -> float:
    """Return the rows a second that plain ``sqlite3`` inserts, so many a transaction (FULL)."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE log (task, seq, turn, kind, at, payload, PRIMARY KEY (task, seq)) "
        "WITHOUT ROWID"
    )
    task_id = str(uuid.uuid4())
    payload = encode(chunk(task_id))
    numbers = itertools.count()
    begun = time.perf_counter()
    written = 0
    while time.perf_counter() < begun + SECONDS:
        rows = [(task_id, next(numbers), 1, "artifact", 0, payload) for _ in range(rows_each)]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
        written += rows_each
    connection.close()
    return written / (time.perf_counter() - begun)


async def measure(folder: Path) -> dict[tuple[str, str], float]:
    stores = {
        "memory": lambda name: MemoryTaskStore(),
        "FULL": lambda name: SqliteTaskStore(folder / f"{name}-full.db"),
        "NORMAL": lambda name: SqliteTaskStore(folder / f"{name}-normal.db", synchronous="NORMAL"),
    }
    rates = {}
    works = (stream, create, whole_tasks, load, page, deliver)
    for work, busy, (kind, new) in itertools.product(works, (False, True), stores.items()):
        store, hints = new(f"{work.__name__}-{busy}"), LocalHints()
        await store.open(hints.publish)
        async with busy_loop() if busy else _idle():
            begun = time.perf_counter()
            until = begun + SECONDS
            done = await (work(store, hints, until) if work is deliver else work(store, until))
            rates[f"{work.__name__}{' (busy)' if busy else ''}", kind] = done / (
                time.perf_counter() - begun
            )
        await store.close()
    return rates


@asynccontextmanager
async def _idle() -> AsyncIterator[None]:
    yield


def main() -> None:
    try:
        import uvloop

        run = uvloop.run
    except ImportError:
        run = asyncio.run
    with tempfile.TemporaryDirectory() as folder:
        plain = baseline(Path(folder) / "plain.db", 1), baseline(Path(folder) / "group.db", 512)
        rates = run(measure(Path(folder)))
    print(f"plain sqlite3, FULL: {plain[0]:,.0f} rows/s one a transaction, {plain[1]:,.0f} by 512")
    print(f"{'per second':24}{'memory':>12}{'FULL':>12}{'NORMAL':>12}{'FULL/plain':>12}")
    for name in dict.fromkeys(name for name, _ in rates):
        values = [rates[name, kind] for kind in ("memory", "FULL", "NORMAL")]
        ratio = values[1] / plain[1] if name.startswith("stream") else values[1] / plain[0]
        print(f"{name:24}" + "".join(f"{v:12,.0f}" for v in values) + f"{ratio:12.2f}")
    print(
        "stream: appends of one event, 8 streams, 64 under way in each (against plain by 512); "
        "create: tasks, 64 at once; whole_tasks: four appends each, 64 at once; "
        "load: 8 at once; page: 50 of 2,000 tasks; deliver: events to 200 readers of one stream."
    )


if __name__ == "__main__":
    main()
