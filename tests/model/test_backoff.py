"""Delays between tries."""

from __future__ import annotations

import os
import subprocess
import sys

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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked there")
def test_forked_processes_draw_other_numbers() -> None:
    """Else workers of one process would all come back at the same time."""
    program = (
        "import os\n"
        "from parley.model.backoff import uniform\n"
        "for _ in range(3):\n"
        "    if not (child := os.fork()):\n"
        "        os.write(1, f'{uniform(0, 1)}\\n'.encode())\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )  # a process without threads, as that of this test has some
    drawn = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert len({*drawn.split()}) == 3
