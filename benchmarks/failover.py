"""Measures failovers: PostgreSQL with a standby, Redis with replicas, one replica of three.

    python benchmarks/failover.py [synchronous late asynchronous pgbouncer sentinel cluster replica]

It needs the tests' environment and uses their kit, which starts each service and ends it by its id.
Each case takes a minute at most. Nothing is compared with a clock of another machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp
from tests.deploy.test_proxy import front
from tests.fleet.callers import client, frames, is_end
from tests.fleet.fleet import Fleet, Replica, fleet_of
from tests.fleet.ledger import numbers
from tests.kit.http import ask
from tests.kit.processes import free_port
from tests.kit.services import postgres, redis

import parley
from parley.client.errors import ClientError
from parley.client.retry import Retry
from parley.host.store_urls import open_store
from parley.model.errors import A2AError
from processes import allow_many_files

LEASE = 3.0
# Errors are shown to the callers here, who repeat their call themselves.
FRANK = Retry(calls=0, streams=400, first=0.05, limit=0.5)
now = time.monotonic


class Seen(logging.Handler):
    """What callers saw: the acknowledged tasks, when, the errors, and how their streams ended.

    ``cured`` has the errors that the client repeated by itself; it logs them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.acknowledged: dict[str, float] = {}
        self.errors: Counter[str] = Counter()
        self.cured: Counter[str] = Counter()
        self.streams: Counter[str] = Counter()
        self.over = False
        logger = logging.getLogger("parley.client.retry")
        logger.handlers, logger.propagate = [self], False
        logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        """Count a call that the client repeats."""
        self.cured[type(record.args[1]).__name__] += 1

    async def send(self, agent: Any) -> None:
        """Send small tasks, each again until it succeeds."""
        while not self.over:
            with self.told():
                answer = await agent.send("x", message_metadata={"skill": "quick"})
                self.acknowledged[answer.id] = now()
            await asyncio.sleep(0.05)

    async def stream(self, agent: Any) -> None:
        """Read one stream after the other; each counts by how it ended."""
        while not self.over:
            how, numbered = "error", []
            events = agent.stream("100 20", message_metadata={"skill": "report"})
            with self.told():
                numbered.extend([(events.seq, event) async for event in events])
                again = [event async for event in agent.subscribe(events.task_id, after=0)]
                how = "whole" if [*enumerate(again, 1)] == numbered else "differs from the log"
            if events.task_id:
                self.streams[how] += 1

    @contextlib.contextmanager
    def told(self) -> Any:
        try:
            yield
        except (ClientError, A2AError) as error:
            self.errors[type(error).__name__] += 1


@contextlib.asynccontextmanager
async def load(fleet: Fleet, seen: Seen) -> AsyncIterator[None]:
    """Have 8 callers send, and 16 read streams; at the end each finishes what it began."""
    async with (
        asyncio.timeout(120),
        parley.connect(fleet.url, retries=FRANK) as agent,
        asyncio.TaskGroup() as callers,
    ):
        for n in range(24):
            callers.create_task((seen.send if n < 8 else seen.stream)(agent))
        yield
        seen.over = True


async def is_ready(fleet: Fleet) -> bool:
    answers = [await ask(replica.url, "GET", "/health/ready") for replica in fleet.replicas]
    return all(answer.status == 200 for answer in answers)


async def database(place: Path, how: str) -> dict[str, Any]:
    """Kill the primary under load, promote its standby, and count what is missing."""
    seen = Seen()
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(postgres.running())
        standby = stack.enter_context(postgres.standing_by(primary))
        if how == "asynchronous":
            primary.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            primary.execute("SELECT pg_reload_conf()")
        url = postgres.either(primary, standby)
        pooler = stack.enter_context(postgres.pooled(primary)) if how == "pgbouncer" else None
        store = pooler.url() if pooler else url
        async with fleet_of(2, place, store=store, bus=url, lease=LEASE) as fleet:
            async with load(fleet, seen):
                await asyncio.sleep(4)
                if how == "asynchronous":  # for half a second nothing reaches the standby
                    [(sender,)] = primary.execute("SELECT pid FROM pg_stat_replication")
                    os.kill(sender, signal.SIGSTOP)
                    await asyncio.sleep(0.5)
                await asyncio.to_thread(primary.kill)
                killed = now()
                await asyncio.sleep(20 if how == "late" else 8)
                began = now()
                await asyncio.to_thread(standby.promote)
                if pooler:
                    pooler.point_to(standby)
                promoted = now()
                while not await is_ready(fleet):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                ready = now()
                await asyncio.sleep(5)
            done = [at for at in seen.acknowledged.values() if at > promoted]
            before = [id for id, at in seen.acknowledged.items() if at <= killed]
            lost = await lookup(standby.url(), before)
    return {
        "promotion_s": promoted - began,
        "first_task_s": min(done) - promoted,
        "all_ready_s": ready - promoted,
        "acknowledged_before": len(before),
        "lost": lost.count(None),
        "errors": dict(seen.errors),
        "cured_by_the_client": dict(seen.cured),
        "streams": dict(seen.streams),
    }


async def lookup(url: str, ids: list[str]) -> list[Any]:
    """Return the tasks as the store has them, ``None`` for one that it lacks."""
    store = open_store(url)
    await store.open(lambda _: None)
    try:
        return [await store.load(id) for id in ids]
    finally:
        await store.close()


async def begin(agent: Any, text: str) -> str:
    """Begin a task that streams chunks; return its id."""
    said = {"message_metadata": {"skill": "report"}, "return_immediately": True}
    return (await agent.send(text, **said)).id


async def bus(place: Path, how: str) -> dict[str, Any]:
    """Kill the Redis primary of some channels while 20 tasks are read on another replica."""
    with contextlib.ExitStack() as stack:
        if how == "cluster":
            nodes = stack.enter_context(redis.cluster(3, replicas=1))
            url = f"redis+cluster://127.0.0.1:{nodes[1].port},127.0.0.1:{nodes[2].port}"
        else:
            nodes, guards = stack.enter_context(redis.watched(3))
            url = "redis+sentinel://" + ",".join(f"127.0.0.1:{g.port}" for g in guards) + "/hints"
        server = stack.enter_context(postgres.running())
        reads: list[list[tuple[float, int]]] = []

        async def read(agent: Any, task: str) -> None:
            events = agent.subscribe(task, after=0)
            reads.append([(now(), events.seq) async for _ in events])

        async with (
            fleet_of(2, place, store=server.url(), bus=url, lease=LEASE) as fleet,
            client(fleet.replicas[0].url) as here,
            client(fleet.replicas[1].url) as elsewhere,
            asyncio.timeout(60),
            asyncio.TaskGroup() as readers,
        ):
            for task in [await begin(here, "900 20") for _ in range(20)]:
                readers.create_task(read(elsewhere, task))
            await asyncio.sleep(5)
            nodes[0].kill()
            killed = now()
    steps = [[(at, at - before) for (before, _), (at, _) in pairwise(seen)] for seen in reads]
    silences, until = [], [0.0] * len(reads)
    for n, reader in enumerate(steps):
        for at, silence in reader:
            # Later silences are the machine's: polls follow one another.
            if silence > 0.2 and 0 < at - killed < until[n] + 1.0:
                until[n] = at - killed
                silences.append(silence)
    return {
        "silence_before_s": quantiles([s for r in steps for at, s in r if at < killed]),
        "silences_of_polled_readers_s": quantiles(silences),
        "polled_readers_until_s": quantiles([at for at in until if at]),
        "gaps": sum([n for _, n in seen] != list(range(1, len(seen) + 1)) for seen in reads),
    }


class Watch:
    """A stream, read without Parley's client, which would hide repeats and cuts."""

    def __init__(self) -> None:
        self.events: list[tuple[float, int]] = []
        self.cuts: list[float] = []
        self.refused = 0

    async def read(self, session: aiohttp.ClientSession, url: str, task: str) -> None:
        """Read until the task ends, and resume after the last event whenever it breaks."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task}}
        over, last = False, 0
        while not over:
            headers = {"A2A-Version": "1.0", "Last-Event-ID": str(last)}
            try:
                async with session.post(url, json=body, headers=headers) as answer:
                    if answer.content_type != "text/event-stream":
                        self.refused += 1
                    else:
                        async for last, event in frames(answer):
                            self.events.append((now(), last))
                            over = is_end(event)
            except (aiohttp.ClientError, OSError):
                self.cuts.append(now())
            if not over:
                await asyncio.sleep(0.1)


async def replica(place: Path, how: str, streams: int = 1000) -> dict[str, Any]:
    """Kill one of three replicas behind HAProxy, in the middle of many streams."""
    addresses = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(postgres.running())
        port = free_port(addresses)
        options = {"store": server.url(), "lease": LEASE, "port": port}
        fleet = [Replica(f"r-{a}", {**options, "host": a}, place) for a in addresses]
        for each in fleet:
            await each.start()
            stack.push_async_callback(stopped, each)
        url = await stack.enter_async_context(front(place, port, addresses))
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        agent = await stack.enter_async_context(client(url))
        tasks: list[str] = []
        for _ in range(streams // 50):
            tasks += await asyncio.gather(*(begin(agent, "30 1000") for _ in range(50)))
        watches = [Watch() for _ in tasks]
        async with asyncio.timeout(150), asyncio.TaskGroup() as readers:
            for task, watch in zip(tasks, watches, strict=True):
                readers.create_task(watch.read(session, url, task))
            await asyncio.sleep(6)
            owners = [record.lease_owner for record in await lookup(server.url(), tasks)]
            await fleet[0].end()
            killed = now()
            await asyncio.sleep(LEASE * 3)
            after = [record.lease_owner for record in await lookup(server.url(), tasks)]
        records = await lookup(server.url(), tasks)
    moved = [before != later for before, later in zip(owners, after, strict=True)]
    cut = [bool(watch.cuts) for watch in watches]
    # What the dead replica had sent may still arrive in the first moments.
    waits = [min(at for at, _ in w.events if at > killed + 0.05) - killed for w in watches]
    rows = list(zip(waits, cut, moved, strict=True))
    orders = [[n for _, n in watch.events] for watch in watches]
    return {
        "cut": sum(cut),
        "taken_over": sum(moved),
        "cut_only_s": quantiles([s for s, c, m in rows if c and not m]),
        "taken_over_s": quantiles([s for s, _, m in rows if m]),
        "untouched_s": quantiles([s for s, c, m in rows if not (c or m)]),
        "refused": sum(watch.refused for watch in watches),
        "gaps_or_repeats": sum(order != list(range(1, len(order) + 1)) for order in orders),
        "completed": sum(
            r.task.state is parley.TaskState.COMPLETED
            and "".join(a.text for a in r.task.artifacts) == numbers(30)
            for r in records
        ),
    }


async def stopped(each: Replica) -> None:
    if each.process is not None and each.process.returncode is None:
        await each.end()


def quantiles(values: list[float]) -> dict[str, float]:
    """Return the number of values, their median, 95th percentile and maximum."""
    ordered = sorted(values) or [float("nan")]
    at = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    found = {name: ordered[int((len(ordered) - 1) * share)] for name, share in at.items()}
    return {"count": len(values), **found}


CASES: dict[str, Callable[[Path, str], Awaitable[dict[str, Any]]]] = {
    "synchronous": database,
    "late": database,
    "asynchronous": database,
    "pgbouncer": database,
    "sentinel": bus,
    "cluster": bus,
    "replica": replica,
}


def main(*names: str) -> None:
    """Run the cases; print what was seen, each as soon as it is known."""
    allow_many_files()
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as place:
            figures = asyncio.run(CASES[name](Path(place), name))
        print(json.dumps({name: figures, "load": os.getloadavg()[0]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
