"""Who is told of a commit, and what is subscribed to, and when."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc

import pytest

from parley.engine.turn.task_writer import MAX_IN_FLIGHT
from parley.store.bus import redis_bus
from parley.store.bus.redis_bus import ChannelInterest
from parley.store.bus.subscriptions import BUFFER_RECORDS, LocalHints, Subscription
from parley.store.events import LoggedEvent
from parley.store.protocols.task_log import LogPosition
from tests.kit.records import numbers, received
from tests.kit.waiting import let_time_pass, until
from tests.store.bus.hinting import Ear, event, place, private

pytestmark = pytest.mark.anyio


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


async def test_a_late_chunk_and_all_that_a_writer_appends_at_a_time_are_held_together() -> None:
    live = Subscription()
    live.put([event(1)], 100)
    live.put([event(seq) for seq in range(2, MAX_IN_FLIGHT + 2)], 100 * MAX_IN_FLIGHT)
    events, behind = live.take()
    assert (len(events), behind) == (MAX_IN_FLIGHT + 1, False)


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


class Deaf:
    """A listener that fails."""

    def on_record(self, record: LoggedEvent) -> None:
        raise RuntimeError("broken")

    def on_position(self, place: LogPosition) -> None:
        raise RuntimeError("lame")


async def test_a_listener_is_called_with_private_records(hints: LocalHints) -> None:
    ear = Ear()
    with hints.listen("t", ear):
        hints.publish([event(1), private(1, 1)])
        hints.publish([private(1, 2)])
        hints.notify_position(place(1))
        hints.notify_position(place(1, "u"))
    hints.publish([private(1, 3)])
    hints.notify_position(place(2))
    assert ear.records == [(1, 1), (1, 2)]
    assert ear.places == [place(1)]


async def test_a_listener_that_fails_harms_nobody(
    hints: LocalHints, caplog: pytest.LogCaptureFixture
) -> None:
    ear = Ear()
    with (
        caplog.at_level(logging.ERROR),
        hints.listen("t", Deaf()),
        hints.listen("t", ear),
        hints.subscribe("t") as live,
    ):
        hints.publish([event(1), private(1, 1)])
        hints.notify_position(place(1))
        assert live.take()[0]
    assert ear.records == [(1, 1)]
    assert ear.places == [place(1)]
    assert "broken" in caplog.text
    assert "lame" in caplog.text


async def test_those_who_listen_for_work_hear_of_it(
    hints: LocalHints, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(agent: str) -> None:
        raise RuntimeError("lazy")

    heard: list[str] = []
    with hints.listen_work(fail), hints.listen_work(heard.append):
        hints.notify_work("a")
    hints.notify_work("b")
    assert heard == ["a"]
    assert "lazy" in caplog.text


async def test_whoever_left_costs_nothing(hints: LocalHints) -> None:
    with hints.subscribe("t"), hints.subscribe("t"), hints.listen("t", Ear()):
        pass
    with pytest.raises(RuntimeError), hints.subscribe("t"):
        raise RuntimeError
    assert not hints.watched


async def test_the_first_who_cares_and_the_last_are_noted(hints: LocalHints) -> None:
    noted: list[tuple[str, bool]] = []
    hints.on_interest = lambda task_id, is_watched: noted.append((task_id, is_watched))
    with hints.subscribe("t"):
        with hints.listen("t", Ear()), hints.listen("u", Ear()), hints.subscribe("t"):
            assert set(hints.watched) == {"t", "u"}
            assert noted == [("t", True), ("u", True)]
        assert noted == [("t", True), ("u", True), ("u", False)]
        assert hints.is_watched("t")
        assert not hints.is_watched("u")
    assert noted[3:] == [("t", False)]


async def test_events_that_come_again_or_late_are_not_taken_twice(hints: LocalHints) -> None:
    with hints.subscribe("t") as live:
        hints.publish([event(1), event(2)])
        hints.publish([event(1)])
        hints.publish([event(2), event(3)])
        events, behind = live.take()
        assert (numbers(events), behind) == ([1, 2, 3], False)
        hints.publish([event(2), event(3)])
        assert not await live.wait(0)
        hints.publish([event(3), event(4)])
        assert numbers(live.take()[0]) == [4]


async def test_a_gap_leaves_the_reader_behind_with_what_came_before_it(hints: LocalHints) -> None:
    with hints.subscribe("t") as live:
        hints.publish([event(1)])
        hints.publish([event(3)])
        hints.publish([event(2)])
        events, behind = live.take()
        assert (numbers(events), behind) == ([1], True)
        live.put([event(5), event(7)], 2)
        assert live.take() == ([], True)


async def test_news_without_records_wakes_only_who_does_not_know(hints: LocalHints) -> None:
    looked: list[str | None] = []
    hints.on_lookup = looked.append
    with hints.subscribe("t") as live:
        live.seen = 2
        hints.publish([event(3)])
        hints.notify_position(place(3))
        hints.notify_seq("t", 3)
        assert live.take()[1] is False
        hints.notify_position(place(4))
        assert await live.wait(5)
        assert live.take() == ([], True)
        live.seen = 4
        hints.notify_seq("t", 5)
        assert live.take() == ([], True)
        live.seen = 5
        hints.notify_seq("t", 5)
        assert not await live.wait(0)
        hints.notify_deleted("t")
        assert live.take() == ([], True)
        assert looked == []
        with hints.listen("t", Ear()):
            hints.notify_seq("t", 5)
        assert looked == ["t"]
        hints.notify_lost()
        assert looked == ["t", None]


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


class Looker:
    """Somebody who looks into the logs of tasks."""

    def __init__(self) -> None:
        self.looks: list[str] = []

    def on_new_events(self, task_id: str) -> None:
        self.looks.append(task_id)


def test_a_follower_hears_of_all_that_may_be_public() -> None:
    hints, looker = LocalHints(), Looker()
    asked: list[tuple[str, bool]] = []
    hints.on_interest = lambda task_id, is_watched: asked.append((task_id, is_watched))
    hints.follow("t", looker.on_new_events)
    assert hints.is_watched("t")
    assert hints.watched
    assert set(hints.watched) == {"t"}
    hints.publish([event(1)])
    hints.publish([private(1, 1)])
    hints.publish([event(1, task_id="u")])
    hints.notify_seq("t", 2)
    hints.notify_deleted("t")
    assert looker.looks == ["t", "t", "t"]
    with hints.subscribe("t"):
        hints.unfollow("t")
        assert asked == [("t", True)]
    hints.unfollow("t")
    assert asked == [("t", True), ("t", False)]
    hints.notify_seq("t", 3)
    assert looker.looks == ["t", "t", "t"]
    assert not hints.watched


# -- tests of what is subscribed to, and when ------------------------------------------------------


class Told:
    """What a bus was told."""

    def __init__(self) -> None:
        self.hints = LocalHints()
        self.calls: list[tuple[str, bool]] = []
        self.interest = ChannelInterest(self.hints, lambda *call: self.calls.append(call))
        self.hints.on_interest = self.interest.note


async def test_what_is_followed_is_subscribed_to_and_left() -> None:
    told = Told()
    with told.hints.subscribe("t"):
        assert told.calls == []
        assert not told.interest.is_subscribed("t")
        await until(lambda: bool(told.calls))
        assert told.interest.is_subscribed("t")
    assert told.calls == [("t", True), ("t", False)]


async def test_what_is_over_at_once_is_not_told_of() -> None:
    told = Told()
    with told.hints.subscribe("t"), told.hints.listen("u", Ear()):
        pass
    with told.hints.subscribe("v"):
        await until(lambda: bool(told.calls))
    assert told.calls == [("v", True), ("v", False)]
    assert told.interest.is_subscribed("t")


async def test_what_is_worked_on_is_subscribed_to_last() -> None:
    told = Told()
    with told.hints.listen("a", Ear()), told.hints.subscribe("a"), told.hints.subscribe("b"):
        await until(lambda: len(told.calls) == 2)
        assert told.calls == [("b", True), ("a", True)]


async def test_work_that_ends_before_its_time_was_never_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_bus, "WORKED_ON_DELAY", 3600.0)
    told = Told()
    with told.hints.listen("a", Ear()):
        with told.hints.subscribe("b"):
            await until(lambda: bool(told.calls))
        assert not told.interest.is_subscribed("a")
    assert told.calls == [("b", True), ("b", False)]
    assert told.interest.is_subscribed("a")


async def test_nothing_is_told_after_the_end() -> None:
    told = Told()
    with told.hints.subscribe("t"):
        told.interest.close()
        await let_time_pass(2 * redis_bus.FOLLOWED_DELAY)
        assert told.calls == []
