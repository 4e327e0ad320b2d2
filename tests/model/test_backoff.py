"""Delays between tries."""

from __future__ import annotations

import pytest

from parley.model import backoff
from parley.model.backoff import Backoff


def test_delays_grow_from_the_first_to_the_longest() -> None:
    delays = [Backoff(0.1, 5.0).delay(failures) for failures in range(1, 9)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    slow = Backoff(2.0, 6.0, factor=1.2)
    assert [slow.delay(failures) for failures in (1, 2, 40)] == pytest.approx([2.0, 2.4, 6.0])


def test_a_row_of_failures_may_be_very_long() -> None:
    assert Backoff(0.1, 5.0).delay(10**9) == 5.0


def test_chance_takes_part_of_a_delay_or_adds_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spread = Backoff(1.0, 8.0, jitter=(0.5, 1.25))
    delays = [spread.delay(4) for _ in range(200)]
    assert all(4.0 <= delay <= 10.0 for delay in delays)
    assert len(set(delays)) > 100
    monkeypatch.setattr(backoff, "uniform", lambda low, high: high)
    assert spread.delay(1) == 1.25
