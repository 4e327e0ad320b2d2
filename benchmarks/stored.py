"""What reading costs beside many stored tasks: get, list and subscribe, in SQLite and PostgreSQL.

    python benchmarks/stored.py [--million]

A store is filled through its own interface, a task of four events an append, up to each of the
sizes; at each an agent is served from it, and asked over one connection.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import load
import services
from processes import HERE, Server, allow_many_files, serving

SIZES = (1_000, 100_000)
MILLION = 1_000_000
AGENT = "benchmark"
UNDER_WAY = 512
CALLS = 200


def finished(number: int) -> Any:
    """Return the append of a whole task: submitted, working, an artifact, completed."""
    from parley.model.parts import Artifact, Message, Part, Role
    from parley.model.struct import Timestamp
    from parley.model.tasks import (
        Task,
        TaskArtifactUpdateEvent,
        TaskState,
        TaskStatus,
        TaskStatusUpdateEvent,
    )
    from parley.store.events import Scope
    from parley.store.fold import pieces_of
    from parley.store.protocols.task_log import Append

    task_id, context_id = str(uuid.UUID(int=number + (1 << 100))), str(uuid.uuid4())
    now = Timestamp.now()
    of = {"task_id": task_id, "context_id": context_id}
    asked = Message(message_id=str(number), role=Role.USER, parts=(Part(text="hello"),), **of)
    states = [
        TaskStatusUpdateEvent(status=TaskStatus(state=state, timestamp=now), **of)
        for state in (TaskState.WORKING, TaskState.COMPLETED)
    ]
    result = Artifact(artifact_id="result", name="result", parts=(Part(text="hello"),))
    begun = Task(
        id=task_id,
        context_id=context_id,
        status=TaskStatus(state=TaskState.SUBMITTED, timestamp=now),
        history=(asked,),
    )
    events = [begun, states[0], TaskArtifactUpdateEvent(artifact=result, **of), states[1]]
    return Append(
        task_id=task_id,
        events=events,
        expected_seq=0,
        turn=1,
        scope=Scope(AGENT),
        context_id=context_id,
        artifacts=pieces_of([result]),
        turn_open=False,
    )


async def fill(store: Any, start: int, end: int) -> None:
    """Store the tasks from ``start`` to ``end``."""
    await store.open(lambda records: None)
    try:
        for at in range(start, end, UNDER_WAY):
            numbers = range(at, min(end, at + UNDER_WAY))
            await asyncio.gather(*[store.append(finished(number)) for number in numbers])
    finally:
        await store.close()


def ask(server: Server, most: int) -> dict[str, float]:
    """Return the median time of each call (ms)."""
    line = load.connect(server.port)
    line.settimeout(60)

    def call(method: str, params: dict[str, object], until: bytes) -> float:
        begun = time.perf_counter()
        line.sendall(load.http_request(server.port, method, params))
        data = b""
        while (body := load.whole_reply(data)) is None:
            data += line.recv(1 << 20)
        took = (time.perf_counter() - begun) * 1e3
        if until not in body:
            raise RuntimeError(f"{method}: {body[:300]!r}")
        return took

    def subscribe(task_id: str) -> float:
        """Have the last two events of a task that has ended."""
        request = load.http_request(server.port, "SubscribeToTask", {"id": task_id})
        request = request.replace(b"\r\n\r\n", b"\r\nLast-Event-ID: 2\r\n\r\n", 1)
        stream = load.connect(server.port)
        stream.settimeout(60)
        begun, data = time.perf_counter(), b""
        stream.sendall(request)
        while not data.endswith(load.LAST_CHUNK):
            new = stream.recv(1 << 16)
            data += new
            if not new:
                raise RuntimeError(f"SubscribeToTask: {data[:300]!r}")
        took = (time.perf_counter() - begun) * 1e3
        stream.close()
        if b"TASK_STATE_COMPLETED" not in data:
            raise RuntimeError(f"SubscribeToTask: {data[:600]!r}")
        return took

    numbers = random.Random(most)
    ids = [str(uuid.UUID(int=numbers.randrange(most) + (1 << 100))) for _ in range(CALLS)]
    figures = {"get": [call("GetTask", {"id": each}, each.encode()) for each in ids]}
    listed = b'"nextPageToken"'
    figures["list"] = [call("ListTasks", {"pageSize": 50}, listed) for _ in range(CALLS // 4)]
    figures["list a state"] = [
        call("ListTasks", {"pageSize": 50, "status": "TASK_STATE_COMPLETED"}, listed)
        for _ in range(CALLS // 4)
    ]
    figures["subscribe"] = [subscribe(each) for each in ids]
    line.close()
    return {name: median(took) for name, took in figures.items()}


def slopes(by_size: dict[int, dict[str, float]]) -> dict[str, float]:
    """Return the power of the number of tasks that each cost grows with: 0 is flat, 1 is linear."""
    least, most = min(by_size), max(by_size)
    if least == most:
        return {}
    return {
        name: math.log(by_size[most][name] / by_size[least][name]) / math.log(most / least)
        for name in by_size[least]
    }


def measure(place: Path, sizes: tuple[int, ...], progress: Callable[[str], None]) -> dict[str, Any]:
    """Return the costs (ms) by store and size, their slopes, and what a stored task takes."""
    figures: dict[str, Any] = {"missing": {}}
    with contextlib.ExitStack() as stack:
        try:
            postgres = stack.enter_context(services.postgres(place / "postgres"))
        except services.Missing as error:
            figures["missing"]["PostgreSQL"] = str(error)
            postgres = None
        for name in ("SQLite", "PostgreSQL"):
            if name == "PostgreSQL" and postgres is None:
                continue
            url = postgres.database() if name == "PostgreSQL" else f"sqlite:///{place}/stored.db"
            try:
                figures[name] = one_store(name, url, place, sizes, progress)
            except (RuntimeError, OSError, socket.timeout) as error:  # noqa: UP041
                figures["missing"][name] = str(error)
                continue
            if name == "PostgreSQL":
                database = url.rpartition("/")[2]
                taken = int(postgres.run(f"SELECT pg_database_size('{database}')"))
            else:
                taken = sum(file.stat().st_size for file in place.glob("stored.db*"))
            figures[name]["bytes_per_task"] = taken / max(sizes)
    return figures


def one_store(
    name: str, url: str, place: Path, sizes: tuple[int, ...], progress: Callable[[str], None]
) -> dict[str, Any]:
    from parley.host.store_urls import open_store

    by_size: dict[int, dict[str, float]] = {}
    stored, fill_seconds = 0, 0.0
    for size in sizes:
        progress(f"{size:,} tasks in {name}: storing them")
        begun = time.perf_counter()
        asyncio.run(fill(open_store(url), stored, size))
        fill_seconds += time.perf_counter() - begun
        stored = size
        progress(f"{size:,} tasks in {name}: reading")
        log = place / f"{name}-{size}.log"
        with serving(sys.executable, "parley_agents.py", "task", url, "pin=no", log=log) as server:
            ask(server, min(size, 100))  # a first look at everything
            by_size[size] = ask(server, size)
    return {
        "ms": {str(size): costs for size, costs in by_size.items()},
        "slope": slopes(by_size),
        "stored_per_second": stored / fill_seconds,
    }


def main() -> None:
    """Measure, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million", action="store_true", help="a million tasks too")
    options = parser.parse_args()
    allow_many_files()
    place = HERE.parent / ".bench"
    place.mkdir(exist_ok=True)
    sizes = (*SIZES, MILLION) if options.million else SIZES
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as directory:
        figures = measure(Path(directory), sizes, lambda line: print(line, file=sys.stderr))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
