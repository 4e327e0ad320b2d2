"""Reading, listing and canceling tasks."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from parley import TaskState
from parley.model.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from tests.contract.agents import release

pytestmark = pytest.mark.anyio


async def test_a_running_task_is_canceled(remote, speech):
    task = await remote.send("hold please", return_immediately=True)
    canceled = await remote.cancel(task.id)
    assert (canceled.id, canceled.state) == (task.id, TaskState.CANCELED)
    assert (await remote.get(task.id)).state is TaskState.CANCELED
    if speech.is_old:
        with pytest.raises(TaskNotCancelableError, match="as canceled"):  # 0.3 §8.2
            await remote.cancel(task.id)
    else:  # a second cancellation is idempotent
        assert (await remote.cancel(task.id)).state is TaskState.CANCELED


async def test_a_task_that_waits_is_canceled(remote):
    task = await remote.send("ask please")
    assert (await remote.cancel(task.id)).state is TaskState.CANCELED


async def test_a_task_is_its_callers_alone(remote, stranger):
    task = await remote.send("ask please")
    for asked in (
        stranger.get(task.id),
        stranger.cancel(task.id),
        stranger.send("42", task_id=task.id),
    ):
        with pytest.raises(TaskNotFoundError):
            await asked
    assert (await remote.get(task.id)).state is TaskState.INPUT_REQUIRED


async def test_ids_are_any_text(remote, speech):
    for id in ("a/b", "ä ö", "%2F", "urn:a:b", "a?b#c", "'", "x" * 500):
        with pytest.raises(TaskNotFoundError):
            await remote.get(id)
    # HTTP+JSON cannot send an id that no path can hold.
    with pytest.raises(InvalidParamsError if speech.binding == "HTTP+JSON" else TaskNotFoundError):
        await remote.get("..")


async def test_a_task_waits_until_it_is_let_go(remote):
    task = await remote.send("hold please", return_immediately=True)
    waiting = asyncio.create_task(remote.wait(task.id, timeout=10))
    release(task)
    assert (await waiting).artifacts[0].parts[0].text == "let go"


@pytest.fixture
async def three(remote):
    """Three tasks of one context, newest first."""
    context = f"c-{uuid4().hex}"
    tasks = [await remote.send("work please", context_id=context) for _ in range(2)]
    tasks.append(await remote.send("ask please", context_id=context))
    return context, tasks[::-1]


async def test_nobody_lists_the_tasks_of_others(stranger, speech, three):
    context, _ = three
    try:
        page = await stranger.list(context_id=context)
    except UnsupportedOperationError:
        assert speech.is_old
        return
    assert (page.tasks, page.total_size, page.next_page_token) == ((), 0, "")
