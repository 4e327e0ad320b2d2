"""When a wait for a reply is over, and what it finds then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from parley import Message, Part, Role
from parley.engine.replies import ReplyHandle, ReplyWait, SharedTimer, TaskReference

pytestmark = pytest.mark.anyio

REPLY = Message(message_id="m-1", role=Role.AGENT, parts=[Part(text="done")])


class Source:
    """Finds no reply, and notes for how long it was asked to try."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    async def find_reply(self, handle: ReplyHandle, timeout: float) -> None:
        self.timeouts.append(timeout)


@pytest.fixture
def timer() -> Iterator[SharedTimer[ReplyWait]]:
    timer = SharedTimer(60.0, ReplyWait.end)
    yield timer
    timer.close()


class Waiting(NamedTuple):
    """A wait, and whether there was a reply when it was over."""

    handle: ReplyHandle
    wait: ReplyWait
    over: list[bool]


def waiting(
    timer: SharedTimer[ReplyWait], timeout: float | None = None, handle: ReplyHandle | None = None
) -> Waiting:
    over: list[bool] = []
    handle = handle or ReplyHandle(TaskReference("t-1"))
    wait = ReplyWait(handle, timer, lambda wait: over.append(wait.handle.done), timeout)
    return Waiting(handle, wait, over)


async def test_a_task_in_the_log_begins_the_timeout_and_ends_nothing(timer) -> None:
    handle, wait, over = waiting(timer)
    assert not timer._times  # before, the caller could not look for the task
    handle.mark_logged()
    handle.mark_logged()
    assert (over, list(timer._times)) == ([], [wait])
    handle.resolve(REPLY)
    assert over == [True]
    assert not timer._times  # nothing is kept of a wait that is over
    handle.mark_logged()
    assert over == [True]
    assert waiting(timer, handle=handle).over == [True]


async def test_a_delegate_looks_for_the_reply_until_the_same_time(timer) -> None:
    handle, wait, over = waiting(timer)
    handle.mark_logged()
    ends_at, source = timer._times[wait], Source()
    handle.delegate_to(source)
    assert over == [False]
    loop = asyncio.get_running_loop()
    least = ends_at - loop.time()
    assert not await wait.find()
    assert ends_at - loop.time() <= source.timeouts[0] <= least
    assert not timer._times


async def test_after_the_timeout_nothing_is_looked_for() -> None:
    timer = SharedTimer(0.0, ReplyWait.end)
    handle, wait, over = waiting(timer)
    handle.mark_logged()
    async with asyncio.timeout(30):
        while not over:
            await asyncio.sleep(0)
    source = Source()
    handle.delegate_to(source)
    assert not await wait.find()
    assert (over, source.timeouts) == ([False], [])


async def test_each_sender_of_a_repeated_message_waits_for_a_time_of_its_own(timer) -> None:
    handle, _, over = waiting(timer)
    logged = asyncio.ensure_future(handle.logged())
    early, late = waiting(timer, 0.0, handle), waiting(timer, 1000.0, handle)
    await asyncio.sleep(0)
    handle.mark_logged()
    async with asyncio.timeout(30):
        await logged  # though the first sender goes on to wait
        while not early.over:
            await asyncio.sleep(0)
    assert (over, late.over) == ([], [])
    handle.resolve(REPLY)
    assert (over, early.over, late.over) == ([True], [False], [True])
    assert late.wait._own_timer is not None
    assert late.wait._own_timer.cancelled()
