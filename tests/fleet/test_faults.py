"""Kills, pauses and cut connections: no event is lost, doubled or reordered.

Every test puts a load of callers on a fleet and causes faults. After the callers have ended, it
compares their records with the store (``ledger``).
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.fleet import faults
from tests.fleet.conftest import FleetOf, Officials
from tests.fleet.load import load
from tests.fleet.settings import schedules
from tests.fleet.test_outage import until_ready
from tests.kit.services import postgres, redis
from tests.kit.waiting import let_time_pass, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.service, pytest.mark.peer]

BUSES = ("postgres", "redis")
"""The carriers of hints. A test without this parameter alternates from schedule to schedule."""


async def unavailable_reason(
    fleet: faults.Fleet, chance: random.Random, kinds: tuple[faults.Fault, ...], times: int
) -> None:
    """Cause this many faults, one after the other."""
    for _ in range(times):
        await let_time_pass(chance.uniform(0.2, 1.0))
        await chance.choice(kinds)(fleet, chance)


@pytest.mark.parametrize("bus", BUSES)
@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_replicas_die_and_stand_still(
    fleet_of: FleetOf, officials: Officials, bus: str, seed: int
) -> None:
    chance = random.Random(seed)
    async with (
        fleet_of(3, bus=bus, seed=seed) as fleet,
        load(fleet, seed) as callers,
        officials(fleet, callers, seed),
    ):
        await faults.freeze(fleet, chance)
        await faults.kill(fleet, chance)
        await unavailable_reason(fleet, chance, faults.REPLICAS, 2)
        await callers.until(20)


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_all_replicas_die_at_once(fleet_of: FleetOf, seed: int) -> None:
    chance = random.Random(seed)
    async with fleet_of(3, seed=seed) as fleet, load(fleet, seed) as callers:
        await unavailable_reason(fleet, chance, (faults.kill_all,), 2)
        await callers.until(20)


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_a_new_version_is_put_in_place(
    fleet_of: FleetOf, officials: Officials, seed: int
) -> None:
    chance = random.Random(seed)
    async with (
        fleet_of(2, bus=BUSES[seed % 2], seed=seed) as fleet,
        load(fleet, seed) as callers,
        officials(fleet, callers, seed),
    ):
        await callers.until(8)
        await faults.roll(fleet, chance)
        await callers.until(callers.book.done.total() + 8)


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_the_database_dies_stands_still_and_is_restarted(
    fleet_of: FleetOf, officials: Officials, seed: int
) -> None:
    chance = random.Random(seed)
    async with (
        fleet_of(2, bus=BUSES[seed % 2], seed=seed) as fleet,
        load(fleet, seed) as callers,
        officials(fleet, callers, seed),
    ):
        for fault in chance.sample(faults.STORE, len(faults.STORE)):
            await callers.until(callers.book.done.total() + 5)
            await fault(fleet, chance)
        await callers.until(callers.book.done.total() + 5)


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_the_database_is_slow_locked_and_interrupted(fleet_of: FleetOf, seed: int) -> None:
    chance = random.Random(seed)
    async with fleet_of(2, bus=BUSES[seed % 2], seed=seed) as fleet, load(fleet, seed) as callers:
        for fault in chance.sample(faults.STORE_TROUBLE, len(faults.STORE_TROUBLE)):
            await fault(fleet, chance)
        await callers.until(20)


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_those_who_work_die_behind_those_who_answer(fleet_of: FleetOf, seed: int) -> None:
    chance = random.Random(seed)
    async with (
        fleet_of(4, seed=seed, roles=("api", "api", "worker", "worker")) as fleet,
        load(fleet, seed) as callers,
    ):
        await unavailable_reason(fleet, chance, faults.REPLICAS, 4)
        await callers.until(20)


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_redis_dies_stands_still_and_is_gone(fleet_of: FleetOf, seed: int) -> None:
    chance = random.Random(seed)
    async with fleet_of(2, bus="redis", seed=seed) as fleet, load(fleet, seed) as callers:
        await callers.until(5)
        await faults.kill_bus(fleet, chance)
        await faults.pause_bus(fleet, chance)
        # This time Redis stays down: the fleet is slower then, but still correct.
        await asyncio.to_thread(fleet.redis.kill)
        await callers.until(callers.book.done.total() + 10)


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_a_standby_is_promoted_and_the_old_primary_comes_back(
    fleet_of: FleetOf, seed: int
) -> None:
    with postgres.running() as primary, postgres.standing_by(primary) as standby:
        store = postgres.either(primary, standby)
        async with fleet_of(2, store=store, seed=seed) as fleet, load(fleet, seed) as callers:
            await callers.until(8)
            await asyncio.to_thread(primary.kill)
            await asyncio.to_thread(standby.promote)
            await asyncio.to_thread(primary.start)
            await callers.until(callers.book.done.total() + 8)
            await asyncio.to_thread(standby.cut_connections)
            await callers.until(callers.book.done.total() + 8)
            for replica in fleet.replicas:
                await until_ready(replica, 200)


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_the_primary_of_some_channels_is_lost(fleet_of: FleetOf, seed: int) -> None:
    with redis.cluster(3, replicas=1) as nodes:
        bus = f"redis+cluster://127.0.0.1:{nodes[1].port},127.0.0.1:{nodes[2].port}"
        async with fleet_of(2, bus=bus, seed=seed) as fleet, load(fleet, seed) as callers:
            await callers.until(5)
            await asyncio.to_thread(nodes[0].kill)
            await callers.until(callers.book.done.total() + 5)
            for replica in fleet.replicas:
                await until(lambda log=replica.log: "works again" in log.read_text())


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_lines_are_cut_silent_and_slow(fleet_of: FleetOf, seed: int) -> None:
    chance = random.Random(seed)
    async with (
        fleet_of(2, bus=BUSES[1 - seed % 2], seed=seed, lines=True) as fleet,
        load(fleet, seed) as callers,
    ):
        await unavailable_reason(fleet, chance, faults.LINES, 5)
        for line in fleet.lines:
            line.heal()
        await callers.until(20)


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_everything_goes_wrong_at_once(
    fleet_of: FleetOf, officials: Officials, seed: int
) -> None:
    chance = random.Random(seed)
    services = (*faults.STORE, *faults.STORE_TROUBLE, *faults.BUS)
    async with (
        fleet_of(3, bus="redis", seed=seed, lines=True) as fleet,
        load(fleet, seed) as callers,
        officials(fleet, callers, seed),
    ):
        async with asyncio.TaskGroup() as troubles:
            for kinds in (faults.REPLICAS, faults.LINES, services):
                own = random.Random(chance.random())
                troubles.create_task(unavailable_reason(fleet, own, kinds, 3))
        for line in fleet.lines:
            line.heal()
        await callers.until(callers.book.done.total() + 10)
