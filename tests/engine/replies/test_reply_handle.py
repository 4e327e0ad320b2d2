"""When a wait for a reply ends, and whether a reply exists at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from parley import Message, Part, Role
from parley.engine.replies import ReplyHandle, ReplyWait, SharedTimer, TaskReference

pytestmark = pytest.mark.anyio

REPLY = Message(message_id="m-1", role=Role.AGENT, parts=[Part(text="done")])


@pytest.fixture
def timer() -> Iterator[SharedTimer[ReplyWait]]:
    timer = SharedTimer(60.0, ReplyWait.end)
    yield timer
    timer.close()


class Waiting(NamedTuple):
    """A wait, and whether there was a reply at its end."""

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
    assert not timer._times  # before the log entry, the caller could not look for the task
    handle.mark_logged()
    handle.mark_logged()
    assert (over, list(timer._times)) == ([], [wait])
    handle.resolve(REPLY)
    assert over == [True]
    assert not timer._times  # a finished wait leaves no timer
    handle.mark_logged()
    assert over == [True]
    assert waiting(timer, handle=handle).over == [True]


async def test_each_sender_of_a_repeated_message_waits_for_a_time_of_its_own(timer) -> None:
    handle, _, over = waiting(timer)
    logged = asyncio.ensure_future(handle.logged())
    early, late = waiting(timer, 0.0, handle), waiting(timer, 1000.0, handle)
    await asyncio.sleep(0)
    handle.mark_logged()
    async with asyncio.timeout(30):
        await logged  # though the first sender still waits
        while not early.over:
            await asyncio.sleep(0)
    assert (over, late.over) == ([], [])
    handle.resolve(REPLY)
    assert (over, early.over, late.over) == ([True], [False], [True])
    assert late.wait._own_timer is not None
    assert late.wait._own_timer.cancelled()
