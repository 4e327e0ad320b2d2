"""What a watcher of a reply is called for, and when its wait ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from parley import Message, Part, Role
from parley.engine.replies import ReplyHandle, SharedTimer, TaskReference

pytestmark = pytest.mark.anyio

REPLY = Message(message_id="m-1", role=Role.AGENT, parts=[Part(text="done")])


class Source:
    """Finds no reply, and notes for how long it was asked to try."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    async def find_reply(self, handle: ReplyHandle, timeout: float) -> None:
        self.timeouts.append(timeout)


@pytest.fixture
def timer() -> Iterator[SharedTimer[ReplyHandle]]:
    timer = SharedTimer(60.0, ReplyHandle.time_out)
    yield timer
    timer.close()


class Watched(NamedTuple):
    """A handle, and what its watcher was told: whether there was a reply, when its wait ends."""

    handle: ReplyHandle
    calls: list[bool]
    ends: list[float | None]


def watched(timer: SharedTimer[ReplyHandle] | None) -> Watched:
    made = Watched(ReplyHandle(TaskReference("t-1")), [], [])
    made.handle.timer = timer

    def changed(ends_at: float | None) -> None:
        made.calls.append(made.handle.done)
        made.ends.append(ends_at)

    made.handle.on_change(changed)
    return made


async def test_with_a_timer_a_task_in_the_log_is_no_change(timer) -> None:
    handle, calls, ends = watched(timer)
    handle.mark_logged()
    handle.mark_logged()
    assert calls == []
    handle.resolve(REPLY)
    assert calls == [True]
    assert not timer._times  # nothing is kept of who has a reply
    without, calls, ends = watched(None)
    without.mark_logged()
    assert calls == [False]
    assert ends == [None]


async def test_what_nobody_here_replies_to_is_looked_for_until_the_same_time(timer) -> None:
    handle, calls, ends = watched(timer)
    handle.mark_logged()
    ends_at = timer._times[handle]
    source = Source()
    handle.delegate(source)
    assert calls == [False]
    loop = asyncio.get_running_loop()
    least = ends_at - loop.time()
    assert ends == [ends_at]
    assert not await handle.wait(1000.0, ends[0])  # instead of another timeout from now on
    assert ends_at - loop.time() <= source.timeouts[0] <= least
    assert not timer._times


async def test_after_the_timeout_a_wait_ends_at_once() -> None:
    timer = SharedTimer(0.0, ReplyHandle.time_out)
    handle, calls, ends = watched(timer)
    handle.mark_logged()
    while not calls:
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        assert not await handle.wait(1000.0, ends[0])
    assert calls == [False]


async def test_who_repeats_a_message_waits_for_a_time_of_its_own(timer) -> None:
    handle, calls, _ = watched(timer)
    logged = asyncio.ensure_future(handle.logged())
    early = asyncio.ensure_future(handle.wait(0.0))
    await asyncio.sleep(0)
    handle.mark_logged()
    async with asyncio.timeout(30):
        await logged  # though the first sender goes on to wait
        assert not await early
    assert calls == []
    late = asyncio.ensure_future(handle.wait(1000.0))
    await asyncio.sleep(0)
    assert not late.done()
    handle.resolve(REPLY)
    assert await late
    assert calls == [True]
