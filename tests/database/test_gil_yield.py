"""Yielding the GIL: threads progress next to a busy loop, and an idle loop has no cost."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from parley.database.database import GilYielder
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio


def counting(
    loop: asyncio.AbstractEventLoop, yielder: GilYielder, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Record the wait of each timer of the yielder: the loop has other timers too."""
    set_timer, waits = loop.call_later, list[float]()

    def call_later(wait: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        if getattr(callback, "__self__", None) is yielder:
            waits.append(wait)
        return set_timer(wait, callback, *args)

    monkeypatch.setattr(loop, "call_later", call_later)
    return waits


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell")
async def test_an_idle_loop_is_seldom_woken_while_a_thread_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    yielder, over = GilYielder(loop), loop.create_future()
    loop.call_later(1, over.set_result, None)
    waits = counting(loop, yielder, monkeypatch)
    yielder.begin()
    await over
    assert 1 < len(waits) < 300  # of a thousand; 25 on a machine with spare time
    # New work starts with the same short wait as the first work.
    del waits[:]
    yielder.begin()
    assert waits in ([], [0.001])
    yielder.end()
    yielder.end()
    await let_time_pass(0.2)
    del waits[:]
    await let_time_pass(0.2)
    assert waits == []


async def test_a_thread_of_a_busy_loop_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of the thread waits for the GIL: without yielding, that takes about a second."""
    loop = asyncio.get_running_loop()
    yielder, done = GilYielder(loop), loop.create_future()

    def work() -> None:
        for _ in range(100):
            time.sleep(0)  # releases the GIL, as every system call does
        loop.call_soon_threadsafe(done.set_result, None)

    waits = counting(loop, yielder, monkeypatch)
    yielder.begin()
    threading.Thread(target=work, daemon=True).start()
    until = time.monotonic() + 30
    while not done.done() and time.monotonic() < until:
        await asyncio.sleep(0)  # a loop that always has work
    yielder.end()
    assert done.done()
    assert set(waits) <= {0.001, 0.002, 0.004}
