"""Tests of what is subscribed to, and when."""

from __future__ import annotations

import pytest

from parley.store.bus import redis_bus
from parley.store.bus.redis_bus import ChannelInterest
from parley.store.bus.subscriptions import LocalHints
from tests.kit.waiting import let_time_pass, until
from tests.store.bus.hinting import Ear

pytestmark = pytest.mark.anyio


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
