"""Work that repeats, and work that excludes other work; maps with room for a number of entries."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from parley.model.bounded import Bounded
from parley.model.concurrency import Done, KeyedLocks, Periodic, outcome_of
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

log = logging.getLogger("parley.test")


def test_the_entry_that_was_set_longest_ago_goes_first() -> None:
    kept: Bounded[str, int] = Bounded(2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    kept["c"] = 4
    assert kept == {"a": 3, "c": 4}
    assert kept.setdefault("d", 5) == 5
    assert list(kept) == ["c", "d"]


def test_an_entry_that_is_used_stays() -> None:
    kept: Bounded[str, int] = Bounded(2)
    kept["a"], kept["b"] = 1, 2
    assert kept.use("a") == 1
    assert kept.use("x") is None
    kept["c"] = 3
    assert list(kept) == ["a", "c"]


async def test_failures_end_no_repetition_and_an_expected_one_is_a_single_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = 0
    enough = asyncio.Event()

    async def step() -> None:
        nonlocal calls
        calls += 1
        if calls in (1, 2, 5):
            raise OSError("away")
        if calls == 3:
            raise ValueError("a fault")
        if calls > 5:
            enough.set()

    periodic = Periodic("sweeping", step, 0, log=log, expected=OSError)
    periodic.start()
    periodic.start()
    await asyncio.wait_for(enough.wait(), 5)
    await periodic.stop()
    await periodic.stop()
    assert not periodic.is_running
    told = [record.getMessage() for record in caplog.records]
    assert told == ["sweeping: away", "sweeping failed", "sweeping: away"]


async def test_a_step_that_has_more_to_do_is_called_again_at_once() -> None:
    left = [True, True, False]
    done = asyncio.Event()

    async def step() -> bool:
        more = left.pop(0)
        if not more:
            done.set()
        return more

    periodic = Periodic("emptying", step, 3600, log=log)
    periodic.start()
    await asyncio.wait_for(done.wait(), 5)
    await periodic.stop()
    assert left == []


async def test_a_lock_that_is_not_held_takes_no_memory() -> None:
    locks = KeyedLocks()
    async with locks.of("a"):
        assert locks.of("a").locked()
        assert not locks.of("b").locked()
    gc.collect()
    assert len(locks._locks) == 0


@pytest.mark.parametrize("first", ["outcome", "cancellation"])
async def test_a_coroutine_that_its_caller_did_not_live_to_await_is_run_to_its_end(
    first: str,
) -> None:
    begun: list[Done] = []
    ended = asyncio.Event()

    async def outcome() -> None:
        ended.set()  # it would release what the work holds

    waiting = asyncio.create_task(outcome_of(begun.append))
    await until(lambda: bool(begun))
    if first == "cancellation":
        waiting.cancel()
        await asyncio.wait([waiting])
    begun[0](outcome())
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    async with asyncio.timeout(10):
        await ended.wait()
