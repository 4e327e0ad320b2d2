"""Recipients of the hint for a commit, and subscriptions."""

from __future__ import annotations

import pytest

from parley.store.bus import redis_bus
from parley.store.bus.redis_bus import ChannelInterest
from parley.store.bus.subscriptions import LocalHints, Subscription
from parley.store.events import LoggedEvent
from parley.store.protocols.task_log import LogPosition
from tests.kit.records import numbers
from tests.kit.waiting import until
from tests.store.bus.hinting import Ear, event, place, private

pytestmark = pytest.mark.anyio


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


async def test_whoever_left_costs_nothing(hints: LocalHints) -> None:
    with hints.subscribe("t"), hints.subscribe("t"), hints.listen("t", Ear()):
        pass
    with pytest.raises(RuntimeError), hints.subscribe("t"):
        raise RuntimeError
    assert not hints.watched


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


# -- subscriptions ---------------------------------------------------------------------------------


class Told:
    """The hints sent to a bus."""

    def __init__(self) -> None:
        self.hints = LocalHints()
        self.calls: list[tuple[str, bool]] = []
        self.interest = ChannelInterest(self.hints, lambda *call: self.calls.append(call))
        self.hints.on_interest = self.interest.note


async def test_what_is_over_at_once_is_not_told_of() -> None:
    told = Told()
    with told.hints.subscribe("t"), told.hints.listen("u", Ear()):
        pass
    with told.hints.subscribe("v"):
        await until(lambda: bool(told.calls))
    assert told.calls == [("v", True), ("v", False)]
    assert told.interest.is_subscribed("t")


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
