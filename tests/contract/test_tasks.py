"""Tasks that are looked at, listed and canceled."""

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
    else:  # once more is once
        assert (await remote.cancel(task.id)).state is TaskState.CANCELED


async def test_a_task_that_waits_is_canceled(remote):
    task = await remote.send("ask please")
    assert (await remote.cancel(task.id)).state is TaskState.CANCELED


@pytest.mark.parametrize("skill", ["work", "fail", "reject"])
async def test_a_task_that_ended_otherwise_cannot_be_canceled(remote, skill):
    task = await remote.send(f"{skill} please")
    with pytest.raises(TaskNotCancelableError):
        await remote.cancel(task.id)


async def test_a_task_that_there_is_not_is_not_found(remote):
    for asked in (remote.get("nobody"), remote.cancel("nobody"), remote.send("x", task_id="n")):
        with pytest.raises(TaskNotFoundError):
            await asked


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
    # But what a path cannot hold, no request over HTTP+JSON can be made of.
    with pytest.raises(InvalidParamsError if speech.binding == "HTTP+JSON" else TaskNotFoundError):
        await remote.get("..")


async def test_a_task_waits_until_it_is_let_go(remote):
    task = await remote.send("hold please", return_immediately=True)
    waiting = asyncio.create_task(remote.wait(task.id, timeout=10))
    release(task)
    assert (await waiting).artifacts[0].parts[0].text == "let go"


class Cannot(Exception):
    """This version has no ListTasks in this binding."""


@pytest.fixture
def listing(remote, speech):
    """List tasks, where the version can: of 0.3 it is HTTP+JSON alone.

    ``tasks/list`` over JSON-RPC of 0.3 is understood, as older texts have it, but not of 0.3.
    """

    async def listed(**options):
        if speech.way in (("JSONRPC", "0.3"), ("GRPC", "0.3")):
            with pytest.raises(UnsupportedOperationError, match=r"0\.3"):
                await remote.list(**options)
            raise Cannot
        return await remote.list(**options)

    return listed


@pytest.fixture
async def three(remote):
    """Three tasks of one context, the latest first."""
    context = f"c-{uuid4().hex}"
    tasks = [await remote.send("work please", context_id=context) for _ in range(2)]
    tasks.append(await remote.send("ask please", context_id=context))
    return context, tasks[::-1]


async def test_tasks_are_listed_the_latest_first(listing, three):
    context, tasks = three
    try:
        page = await listing(context_id=context)
    except Cannot:
        return
    assert [task.id for task in page.tasks] == [task.id for task in tasks]
    assert (page.total_size, page.next_page_token) == (3, "")
    assert page.page_size >= 3


async def test_tasks_are_listed_in_pages(listing, three):
    context, tasks = three
    found, token = [], ""
    try:
        for size in (2, 1):
            page = await listing(context_id=context, page_size=2, page_token=token)
            assert len(page.tasks) == size
            assert page.total_size == 3
            found += [task.id for task in page.tasks]
            token = page.next_page_token
    except Cannot:
        return
    assert token == ""
    assert found == [task.id for task in tasks]


async def test_tasks_are_listed_by_their_state(listing, three):
    context, tasks = three
    try:
        page = await listing(context_id=context, status=TaskState.INPUT_REQUIRED)
    except Cannot:
        return
    assert [task.id for task in page.tasks] == [tasks[0].id]
    assert page.tasks[0].state is TaskState.INPUT_REQUIRED


async def test_tasks_are_listed_since_a_moment(listing, three):
    context, tasks = three
    since = tasks[1].status.timestamp
    try:
        page = await listing(context_id=context, status_timestamp_after=since)
    except Cannot:
        return
    # Inclusive, and of three tasks that followed each other within milliseconds.
    assert tasks[0].id in [task.id for task in page.tasks]
    assert tasks[1].id in [task.id for task in page.tasks]


async def test_lists_hold_artifacts_and_history_only_when_asked(listing, three):
    context, _ = three
    try:
        page = await listing(context_id=context)
        full = await listing(context_id=context, include_artifacts=True, history_length=1)
        none = await listing(context_id=context, history_length=0)
    except Cannot:
        return
    assert all(task.artifacts == () for task in page.tasks)
    assert full.tasks[-1].artifacts[0].parts[0].text == "done"
    assert all(len(task.history) == 1 for task in full.tasks)
    assert all(task.history == () for task in none.tasks)


async def test_nobody_lists_the_tasks_of_others(stranger, speech, three):
    context, _ = three
    try:
        page = await stranger.list(context_id=context)
    except UnsupportedOperationError:
        assert speech.is_old
        return
    assert (page.tasks, page.total_size, page.next_page_token) == ((), 0, "")


@pytest.mark.parametrize("options", [{"page_size": 101}, {"page_token": "nonsense"}])
async def test_a_list_that_makes_no_sense_is_refused(listing, options):
    try:
        with pytest.raises(InvalidParamsError):
            await listing(**options)
    except Cannot:
        return
