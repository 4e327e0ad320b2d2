"""What goes wrong with a fleet. Each leaves it as it found it, so that callers can go on."""

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
    """End a replica in the middle of whatever it does, and start it again."""
    replica = fleet.one(chance)
    await replica.end()
    await let_time_pass(chance.uniform(0.0, 1.5 * fleet.lease))
    await replica.start()


async def freeze(fleet: Fleet, chance: random.Random) -> None:
    """Let a replica stand still for longer than its lease: it wakes up and knows nothing of it."""
    replica = fleet.one(chance)
    replica.tell(signal.SIGSTOP)
    await let_time_pass(fleet.lease * chance.uniform(1.2, 2.0))
    replica.tell(signal.SIGCONT)


async def hiccup(fleet: Fleet, chance: random.Random) -> None:
    """Let a replica stand still for less than its lease."""
    replica = fleet.one(chance)
    replica.tell(signal.SIGSTOP)
    await let_time_pass(fleet.lease * chance.uniform(0.1, 0.5))
    replica.tell(signal.SIGCONT)


async def replace(fleet: Fleet, chance: random.Random) -> None:
    """Stop a replica as a deploy does, and start the next."""
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
    """Let a replica stand still again and again, for a moment each."""
    replica = fleet.one(chance)
    for _ in range(10):
        replica.tell(signal.SIGSTOP)
        await let_time_pass(chance.uniform(0.0, 0.15))
        replica.tell(signal.SIGCONT)
        await let_time_pass(chance.uniform(0.0, 0.1))


async def lose_patience(fleet: Fleet, chance: random.Random) -> None:
    """Stop a replica as a deploy does, and end it before it is done, one way or the other."""
    replica = fleet.one(chance)
    replica.tell(signal.SIGTERM)
    await let_time_pass(chance.uniform(0.0, 1.5))
    await replica.end(chance.choice((signal.SIGTERM, signal.SIGKILL)))
    await replica.start()


async def kill_all(fleet: Fleet, chance: random.Random) -> None:
    """End all replicas at once: nobody is there to take anything over."""
    await asyncio.gather(*(each.end() for each in fleet.replicas))
    await asyncio.gather(*(each.start() for each in fleet.replicas))


# -- lines -----------------------------------------------------------------------------------------


async def cut(fleet: Fleet, chance: random.Random) -> None:
    """Break all connections of one of the lines."""
    for _ in range(chance.randint(1, 4)):
        fleet.line(chance).cut()
        await let_time_pass(chance.uniform(0.0, 0.3))


async def refuse(fleet: Fleet, chance: random.Random) -> None:
    """Take one of the lines away for a while."""
    line = fleet.line(chance)
    line.refuse()
    line.cut()
    await let_time_pass(chance.uniform(0.1, 1.2 * fleet.lease))
    await line.accept()


async def silence(fleet: Fleet, chance: random.Random) -> None:
    """Let nothing pass one of the lines for a while; nobody is told."""
    line = fleet.line(chance)
    line.freeze()
    await let_time_pass(chance.uniform(0.1, 1.5 * fleet.lease))
    line.thaw()


async def half_open(fleet: Fleet, chance: random.Random) -> None:
    """Let some connections of one of the lines stand, one way or both, while others are made.

    What is held then comes late: when the one that waited for it may long have gone on.
    """
    line = fleet.line(chance)
    line.hold(lambda: chance.random() < 0.4)
    await let_time_pass(fleet.lease * chance.uniform(0.3, 2.5))
    if chance.random() < 0.5:
        line.release()
    else:
        line.cut()


async def cut_in_answers(fleet: Fleet, chance: random.Random) -> None:
    """Have connections of one of the lines break in the middle of what they are told."""
    line = fleet.line(chance)
    line.drop_after = chance.randint(200, 20_000)
    line.cut()
    await let_time_pass(chance.uniform(0.2, 1.5))
    line.drop_after = None
    line.cut()


async def slow(fleet: Fleet, chance: random.Random) -> None:
    """Make one of the lines slow for a while."""
    line = fleet.line(chance)
    line.delay = chance.uniform(0.005, 0.05)
    await let_time_pass(chance.uniform(0.5, 1.5))
    line.heal()


LINES: tuple[Fault, ...] = (cut, refuse, silence, half_open, cut_in_answers, slow)
REPLICAS: tuple[Fault, ...] = (kill, freeze, hiccup, stutter, replace, lose_patience)


# -- services --------------------------------------------------------------------------------------


async def kill_store(fleet: Fleet, chance: random.Random) -> None:
    """End the database in the middle of whatever it does, and start it again."""
    await asyncio.to_thread(fleet.postgres.kill)
    await let_time_pass(chance.uniform(0.0, 1.2 * fleet.lease))
    await asyncio.to_thread(fleet.postgres.start)


async def restart_store(fleet: Fleet, chance: random.Random) -> None:
    """Restart the database as whoever keeps it does."""
    await asyncio.to_thread(fleet.postgres.stop)
    await let_time_pass(chance.uniform(0.0, 0.5))
    await asyncio.to_thread(fleet.postgres.start)


async def pause_store(fleet: Fleet, chance: random.Random) -> None:
    """Let the database stand still for longer than a lease: nobody is dead for that."""
    await asyncio.to_thread(fleet.postgres.pause)
    await let_time_pass(fleet.lease * chance.uniform(0.5, 1.5))
    await asyncio.to_thread(fleet.postgres.go_on)


async def cut_store(fleet: Fleet, chance: random.Random) -> None:
    """End every connection to the database, whatever it does."""
    for _ in range(chance.randint(1, 3)):
        await asyncio.to_thread(fleet.postgres.cut_connections)
        await let_time_pass(chance.uniform(0.0, 0.3))


async def stop_backends(fleet: Fleet, chance: random.Random) -> None:
    """Let some of the database's processes stand still, perhaps in the middle of a commit."""
    pids = [pid for pid in fleet.postgres.backends() if chance.random() < 0.4]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    await let_time_pass(fleet.lease * chance.uniform(0.3, 2.0))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def lock_table(fleet: Fleet, chance: random.Random) -> None:
    """Lock one of the tables for a while, as somebody does who tends the database."""
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
    """Cancel whatever the database does, again and again."""
    for _ in range(20):
        await asyncio.to_thread(
            fleet.postgres.execute,
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND state = 'active'",
        )
        await let_time_pass(chance.uniform(0.0, 0.1))


async def kill_bus(fleet: Fleet, chance: random.Random) -> None:
    """End Redis, and start it again later."""
    await asyncio.to_thread(fleet.redis.kill)
    await let_time_pass(chance.uniform(0.0, 2.0))
    await asyncio.to_thread(fleet.redis.start)


async def pause_bus(fleet: Fleet, chance: random.Random) -> None:
    """Let Redis stand still for a while."""
    fleet.redis.pause()
    await let_time_pass(chance.uniform(0.5, 2.0))
    fleet.redis.go_on()


STORE: tuple[Fault, ...] = (kill_store, restart_store, pause_store, cut_store)
STORE_TROUBLE: tuple[Fault, ...] = (stop_backends, lock_table, cancel_queries)
"""What the database survives; while it lives."""
BUS: tuple[Fault, ...] = (kill_bus, pause_bus)
