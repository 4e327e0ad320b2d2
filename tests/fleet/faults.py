"""Faults of a fleet. Each fault repairs its damage, so that callers can continue."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable

from tests.fleet.fleet import Fleet
from tests.kit.waiting import let_time_pass

Fault = Callable[[Fleet, random.Random], Awaitable[None]]


async def kill(fleet: Fleet, chance: random.Random) -> None:
    """Kill a replica at a random moment, and start it again."""
    replica = fleet.one(chance)
    await replica.end()
    await let_time_pass(chance.uniform(0.0, 1.5 * fleet.lease))
    await replica.start()


async def freeze(fleet: Fleet, chance: random.Random) -> None:
    """Pause a replica for longer than its lease; the replica does not notice the pause."""
    replica = fleet.one(chance)
    replica.tell(signal.SIGSTOP)
    await let_time_pass(fleet.lease * chance.uniform(1.2, 2.0))
    replica.tell(signal.SIGCONT)


async def hiccup(fleet: Fleet, chance: random.Random) -> None:
    """Pause a replica for less than its lease."""
    replica = fleet.one(chance)
    replica.tell(signal.SIGSTOP)
    await let_time_pass(fleet.lease * chance.uniform(0.1, 0.5))
    replica.tell(signal.SIGCONT)


async def replace(fleet: Fleet, chance: random.Random) -> None:
    """Stop a replica as a deployment does, and start its successor."""
    replica = fleet.one(chance)
    status = await replica.end(signal.SIGTERM)
    assert status in (0, -signal.SIGTERM), (status, fleet.logs())
    await replica.start()


async def roll(fleet: Fleet, chance: random.Random) -> None:
    """Replace all replicas, one after the other."""
    for replica in fleet.replicas:
        status = await replica.end(signal.SIGTERM)
        assert status in (0, -signal.SIGTERM), (status, fleet.logs())
        await replica.start()


async def stutter(fleet: Fleet, chance: random.Random) -> None:
    """Pause a replica again and again, for a moment each."""
    replica = fleet.one(chance)
    for _ in range(10):
        replica.tell(signal.SIGSTOP)
        await let_time_pass(chance.uniform(0.0, 0.15))
        replica.tell(signal.SIGCONT)
        await let_time_pass(chance.uniform(0.0, 0.1))


async def lose_patience(fleet: Fleet, chance: random.Random) -> None:
    """Stop a replica as a deployment does, and end it by a second signal before it has finished."""
    replica = fleet.one(chance)
    replica.tell(signal.SIGTERM)
    await let_time_pass(chance.uniform(0.0, 1.5))
    await replica.end(chance.choice((signal.SIGTERM, signal.SIGKILL)))
    await replica.start()


async def kill_all(fleet: Fleet, chance: random.Random) -> None:
    """Kill all replicas at once, so that no replica can claim their tasks."""
    await asyncio.gather(*(each.end() for each in fleet.replicas))
    await asyncio.gather(*(each.start() for each in fleet.replicas))


# -- proxies ---------------------------------------------------------------------------------------


async def cut(fleet: Fleet, chance: random.Random) -> None:
    """Break all connections of a proxy."""
    for _ in range(chance.randint(1, 4)):
        fleet.line(chance).cut()
        await let_time_pass(chance.uniform(0.0, 0.3))


async def refuse(fleet: Fleet, chance: random.Random) -> None:
    """Reject all connections of a proxy for a while."""
    line = fleet.line(chance)
    line.refuse()
    line.cut()
    await let_time_pass(chance.uniform(0.1, 1.2 * fleet.lease))
    await line.accept()


async def silence(fleet: Fleet, chance: random.Random) -> None:
    """Let no bytes pass a proxy for a while, without a notice to either side."""
    line = fleet.line(chance)
    line.freeze()
    await let_time_pass(chance.uniform(0.1, 1.5 * fleet.lease))
    line.thaw()


async def half_open(fleet: Fleet, chance: random.Random) -> None:
    """Block some connections of a proxy, in one direction or both, while new connections work.

    The blocked data arrives late: its receiver may have given up long before.
    """
    line = fleet.line(chance)
    line.hold(lambda: chance.random() < 0.4)
    await let_time_pass(fleet.lease * chance.uniform(0.3, 2.5))
    if chance.random() < 0.5:
        line.release()
    else:
        line.cut()


async def cut_in_answers(fleet: Fleet, chance: random.Random) -> None:
    """Break connections of a proxy in the middle of a response."""
    line = fleet.line(chance)
    line.drop_after = chance.randint(200, 20_000)
    line.cut()
    await let_time_pass(chance.uniform(0.2, 1.5))
    line.drop_after = None
    line.cut()


async def slow(fleet: Fleet, chance: random.Random) -> None:
    """Slow a proxy down for a while."""
    line = fleet.line(chance)
    line.delay = chance.uniform(0.005, 0.05)
    await let_time_pass(chance.uniform(0.5, 1.5))
    line.heal()


LINES: tuple[Fault, ...] = (cut, refuse, silence, half_open, cut_in_answers, slow)
REPLICAS: tuple[Fault, ...] = (kill, freeze, hiccup, stutter, replace, lose_patience)


# -- services --------------------------------------------------------------------------------------


async def kill_store(fleet: Fleet, chance: random.Random) -> None:
    """Kill the database at a random moment, and start it again."""
    await asyncio.to_thread(fleet.postgres.kill)
    await let_time_pass(chance.uniform(0.0, 1.2 * fleet.lease))
    await asyncio.to_thread(fleet.postgres.start)


async def restart_store(fleet: Fleet, chance: random.Random) -> None:
    """Restart the database as an operator does."""
    await asyncio.to_thread(fleet.postgres.stop)
    await let_time_pass(chance.uniform(0.0, 0.5))
    await asyncio.to_thread(fleet.postgres.start)


async def pause_store(fleet: Fleet, chance: random.Random) -> None:
    """Pause the database, at times for longer than a lease: no replica may expire for that."""
    await asyncio.to_thread(fleet.postgres.pause)
    await let_time_pass(fleet.lease * chance.uniform(0.5, 1.5))
    await asyncio.to_thread(fleet.postgres.go_on)


async def cut_store(fleet: Fleet, chance: random.Random) -> None:
    """End every connection to the database."""
    for _ in range(chance.randint(1, 3)):
        await asyncio.to_thread(fleet.postgres.cut_connections)
        await let_time_pass(chance.uniform(0.0, 0.3))


async def stop_backends(fleet: Fleet, chance: random.Random) -> None:
    """Pause some of the database's processes, perhaps in the middle of a commit."""
    pids = [pid for pid in fleet.postgres.backends() if chance.random() < 0.4]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    await let_time_pass(fleet.lease * chance.uniform(0.3, 2.0))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def lock_table(fleet: Fleet, chance: random.Random) -> None:
    """Lock a table for a while, as an administrator does."""
    name = chance.choice(("tasks", "log", "task_messages", "replicas", "receipts", "task_counts"))
    seconds = fleet.lease * chance.uniform(0.3, 2.0)
    database = fleet.store.rpartition("/")[2]
    await asyncio.to_thread(
        fleet.postgres.execute,
        f"DO $$ BEGIN LOCK TABLE parley.{name} IN ACCESS EXCLUSIVE MODE; "
        f"PERFORM pg_sleep({seconds}); END $$",
        database,
    )


async def cancel_queries(fleet: Fleet, chance: random.Random) -> None:
    """Cancel the database's active queries, again and again."""
    for _ in range(20):
        await asyncio.to_thread(
            fleet.postgres.execute,
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND state = 'active'",
        )
        await let_time_pass(chance.uniform(0.0, 0.1))


async def kill_bus(fleet: Fleet, chance: random.Random) -> None:
    """Kill Redis, and start it again later."""
    await asyncio.to_thread(fleet.redis.kill)
    await let_time_pass(chance.uniform(0.0, 2.0))
    await asyncio.to_thread(fleet.redis.start)


async def pause_bus(fleet: Fleet, chance: random.Random) -> None:
    """Pause Redis for a while."""
    fleet.redis.pause()
    await let_time_pass(chance.uniform(0.5, 2.0))
    fleet.redis.go_on()


STORE: tuple[Fault, ...] = (kill_store, restart_store, pause_store, cut_store)
STORE_TROUBLE: tuple[Fault, ...] = (stop_backends, lock_table, cancel_queries)
"""Faults within a running database."""
BUS: tuple[Fault, ...] = (kill_bus, pause_bus)
