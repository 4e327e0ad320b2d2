"""One replica on SQLite, for comparison: with the same callers and the same final check."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fleet.conftest import Officials
from tests.fleet.faults import kill, replace
from tests.fleet.fleet import fleet_of
from tests.fleet.load import load
from tests.fleet.settings import schedules
from tests.kit.waiting import let_time_pass

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.peer]


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_a_single_replica_loses_nothing_either(
    tmp_path: Path, officials: Officials, seed: int
) -> None:
    chance = random.Random(seed)
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with (
        fleet_of(1, tmp_path, store=store, seed=seed) as fleet,
        load(fleet, seed) as callers,
        officials(fleet, callers, seed),
    ):
        for _ in range(2):
            await let_time_pass(chance.uniform(0.2, 0.8))
            await chance.choice((kill, replace))(fleet, chance)
        await callers.until(12)
