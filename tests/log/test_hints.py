"""Who is told of a commit."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc

import pytest

from parley.log.events import CancelRequested, Kind, LoggedEvent
from parley.log.hints import BUFFER_RECORDS, LocalHints, Subscription
from parley.model.encoding import encode
from tests.log.making import chunk, numbers, received

pytestmark = pytest.mark.anyio


def event(seq: int, text: str = "x", task_id: str = "t") -> LoggedEvent:
    update = chunk(task_id, text)
    return LoggedEvent(task_id, seq, 1, Kind.ARTIFACT, encode(update), update, 0)


def private(seq: int, sub: int) -> LoggedEvent:
    request = CancelRequested()
    return LoggedEvent("t", seq, 1, Kind.CANCEL, encode(request), request, 0, sub)


async def test_a_subscriber_gets_the_public_events_of_its_task(hints: LocalHints) -> None:
    with hints.subscribe("t") as live, hints.subscribe("u") as other:
        hints.publish([event(1), private(1, 1), event(2)])
        hints.publish([private(2, 1)])
        hints.publish([event(3)])
        hints.publish([])
        assert await live.wait(5)
        events, behind = live.take()
        assert (numbers(events), behind) == ([1, 2, 3], False)
        assert live.take() == ([], False)
        assert other.take() == ([], False)


async def test_a_waiting_subscriber_is_woken(hints: LocalHints) -> None:
    with hints.subscribe("t") as live:
        waiting = asyncio.ensure_future(live.wait(60))
        await asyncio.sleep(0)
        hints.publish([event(1)])
        assert await asyncio.wait_for(waiting, 5)
        assert live.take()[0][0].seq == 1
        assert not await live.wait(0)


async def test_one_that_takes_too_little_is_behind_and_holds_nothing(hints: LocalHints) -> None:
    with hints.subscribe("t") as slow, hints.subscribe("t") as quick:
        for seq in range(1, BUFFER_RECORDS + 10):
            hints.publish([event(seq)])
            quick.take()
        assert await slow.wait(5)
        assert slow.take() == ([], True)
        hints.publish([event(BUFFER_RECORDS + 10)])
        events, behind = slow.take()
        assert (numbers(events), behind) == ([BUFFER_RECORDS + 10], False)


async def test_buffers_are_bounded_in_bytes_but_hold_any_single_append() -> None:
    live = Subscription(records=4, size=1000)
    live.put([event(1), event(2)], 2000)
    assert numbers(live.take()[0]) == [1, 2]
    live.put([event(3)], 600)
    live.put([event(4)], 600)
    assert live.take() == ([], True)
    live.put([event(n) for n in range(5, 15)], 10)
    assert len(live.take()[0]) == 10


async def test_a_listener_is_called_with_private_records(hints: LocalHints) -> None:
    heard: list[tuple[int, int]] = []
    with hints.listen("t", lambda record: heard.append((record.seq, record.sub))):
        hints.publish([event(1), private(1, 1)])
        hints.publish([private(1, 2)])
    hints.publish([private(1, 3)])
    assert heard == [(1, 1), (1, 2)]


async def test_a_listener_that_fails_harms_nobody(
    hints: LocalHints, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []

    def fail(record: LoggedEvent) -> None:
        raise RuntimeError("broken")

    with (
        caplog.at_level(logging.ERROR),
        hints.listen("t", fail),
        hints.listen("t", lambda record: heard.append(record.sub)),
        hints.subscribe("t") as live,
    ):
        hints.publish([event(1), private(1, 1)])
        assert live.take()[0]
    assert heard == [1]
    assert "broken" in caplog.text


async def test_whoever_left_costs_nothing(hints: LocalHints) -> None:
    with hints.subscribe("t"), hints.subscribe("t"), hints.listen("t", print):
        pass
    with pytest.raises(RuntimeError), hints.subscribe("t"):
        raise RuntimeError
    assert hints.is_idle


async def test_an_idle_subscription_is_small(hints: LocalHints) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        subscriptions = [hints.subscribe(f"t{n}") for n in range(1000)]
        lives = [subscription.__enter__() for subscription in subscriptions]
        waits = [asyncio.ensure_future(live.wait(60)) for live in lives]
        await asyncio.sleep(0)
        each = (tracemalloc.get_traced_memory()[0] - before) / 1000
    finally:
        tracemalloc.stop()
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert each < 5000
    assert received("a")
