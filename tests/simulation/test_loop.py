"""The event loop of the simulation, by itself."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.simulation.loop import Process, SimulatedLoop, Stuck


def _loop(seed: int = 1) -> SimulatedLoop:
    return SimulatedLoop(Random(seed))


def test_time_passes_without_waiting() -> None:
    loop = _loop()

    async def main() -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert 3600 <= loop.run(main()) < 3601


def test_within_a_process_things_happen_in_their_order_and_between_processes_in_any() -> None:
    def orders(seed: int) -> list[str]:
        loop, seen = _loop(seed), []
        one, other = Process(loop, "one"), Process(loop, "other")

        async def main() -> None:
            for n in range(8):
                one.after(0, seen.append, f"one{n}")
                other.after(0, seen.append, f"other{n}")
            await asyncio.sleep(1)

        loop.run(main())
        return seen

    found = [orders(seed) for seed in range(20)]
    for order in found:
        assert [name for name in order if name.startswith("one")] == [f"one{n}" for n in range(8)]
    assert len({tuple(order) for order in found}) > 10
    assert orders(3) == found[3]


def test_a_process_that_was_killed_does_not_even_clean_up() -> None:
    loop, seen = _loop(), []

    async def main() -> None:
        victim = Process(loop, "victim")

        async def work() -> None:
            try:
                seen.append("works")
                await asyncio.sleep(1)
            finally:
                seen.append("cleans up")

        victim.spawn(work())
        await asyncio.sleep(0.5)
        victim.kill()
        await asyncio.sleep(5)

    loop.run(main())
    assert seen == ["works"]
    loop.close()


def test_a_process_that_stands_still_goes_on_where_it_was() -> None:
    loop, seen = _loop(), []

    async def main() -> None:
        process = Process(loop, "process")

        async def work() -> None:
            await asyncio.sleep(1)
            seen.append(loop.time())

        process.spawn(work())
        await asyncio.sleep(0.1)
        process.is_paused = True
        await asyncio.sleep(10)
        assert not seen
        process.is_paused = False
        await asyncio.sleep(1)

    loop.run(main())
    assert 10 < seen[0] < 11


def test_a_wait_for_what_never_comes_is_found_out() -> None:
    loop = _loop()

    async def main() -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="nothing will ever happen"):
        loop.run(main())
    loop.close()


def test_there_are_no_threads() -> None:
    loop = _loop()

    async def main() -> None:
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)

    loop.run(main())
