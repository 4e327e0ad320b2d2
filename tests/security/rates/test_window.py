"""The arithmetic of windows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parley.security.limits.counters import SLOTS, Window

PERIODS = st.sampled_from([1000, 60_000, 7_200_000])
STEPS = st.lists(st.tuples(st.integers(0, 90_000), st.integers(1, 5)), max_size=60)


@given(st.sampled_from([1000, 60_000]), st.integers(1, 20), STEPS)
def test_no_span_has_more_than_the_amount(
    period: int, amount: int, steps: list[tuple[int, int]]
) -> None:
    window, now = Window(period), 0
    taken: list[tuple[int, int]] = []
    for pause, wanted in steps:
        now += pause
        if given_ := window.take(now, amount, wanted):
            taken.append((now, given_))
    for begin, _ in taken:
        within = sum(count for at, count in taken if begin <= at < begin + period)
        assert within <= amount


@given(PERIODS, st.integers(1, 20), STEPS)
def test_after_the_wait_there_is_room(
    period: int, amount: int, steps: list[tuple[int, int]]
) -> None:
    window, now = Window(period), 0
    for pause, wanted in steps:
        now += pause
        window.take(now, amount, wanted)
    if window.total >= amount:
        assert window.take(now + window.wait(now), amount) == 1


@given(PERIODS, st.integers(1, 20), STEPS)
def test_what_is_given_back_can_be_taken_again(
    period: int, amount: int, steps: list[tuple[int, int]]
) -> None:
    window, now = Window(period), 0
    for pause, wanted in steps:
        now += pause
        before = window.total
        given_ = window.take(now, amount, wanted)
        window.give_back(given_)
        assert window.total <= before
        assert window.take(now, amount, given_) == given_


@given(STEPS)
def test_a_window_is_as_large_as_its_slots(steps: list[tuple[int, int]]) -> None:
    window, now = Window(60_000), 0
    for pause, wanted in steps:
        now += pause
        window.take(now, 10**9, wanted)
        assert len(window._slots) <= SLOTS + 1


def test_a_day_begins_anew() -> None:
    day = 86_400_000
    window = Window(day, 0)
    assert window.take(day - 1, 5, 9) == 5
    assert window.wait(day - 1) == 1
    assert window.take(day, 5, 9) == 5


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    window = Window(1000)
    assert window.take(10_000, 3, 3) == 3
    assert window.take(9_000, 3) == 0
