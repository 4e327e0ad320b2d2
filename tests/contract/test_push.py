"""Push notification configurations: create, get, list, delete."""

from __future__ import annotations

import pytest

from parley import TaskPushNotificationConfig, TaskState
from parley.model.errors import TaskNotFoundError

pytestmark = pytest.mark.anyio

HOOK = "https://hooks.example.com/a2a"


@pytest.fixture
async def task(remote):
    """A task that waits for input."""
    return await remote.send("ask please")


def config(id="", **more):
    return TaskPushNotificationConfig(id=id, url=HOOK, **more)


async def test_a_configuration_without_an_id_is_given_one(remote, task):
    made = await remote.push.create(task.id, config())
    assert made.id
    assert (await remote.push.get(task.id, made.id)).url == HOOK


async def test_a_task_has_several_configurations(remote, task):
    for number in range(3):
        await remote.push.create(task.id, config(f"c-{number}"))
    listed = [each.id async for each in remote.push.list(task.id)]
    assert sorted(listed) == ["c-0", "c-1", "c-2"]


async def test_configurations_are_listed_in_pages(remote, task, speech):
    for number in range(3):
        await remote.push.create(task.id, config(f"c-{number}"))
    page = await remote.push.page(task.id, page_size=2)
    if speech.way == ("JSONRPC", "0.3"):
        # The response is the list itself, so it has no pages.
        assert (len(page.configs), page.next_page_token) == (3, "")
        return
    assert len(page.configs) == 2
    rest = await remote.push.page(task.id, page_size=2, page_token=page.next_page_token)
    assert {each.id for each in (*page.configs, *rest.configs)} == {"c-0", "c-1", "c-2"}
    assert rest.next_page_token == ""


async def test_the_same_id_replaces(remote, task):
    await remote.push.create(task.id, config("c-1"))
    await remote.push.create(
        task.id, TaskPushNotificationConfig(id="c-1", url="https://hooks.example.com/other")
    )
    listed = [each.url async for each in remote.push.list(task.id)]
    assert listed == ["https://hooks.example.com/other"]


async def test_a_message_brings_a_configuration(remote):
    task = await remote.send("ask please", push=config("c-9"))
    assert task.state is TaskState.INPUT_REQUIRED
    assert [each.id async for each in remote.push.list(task.id)] == ["c-9"]


async def test_configurations_belong_to_the_caller_of_the_task(remote, stranger, task):
    await remote.push.create(task.id, config("c-1"))
    for asked in (
        stranger.push.create(task.id, config("c-2")),
        stranger.push.get(task.id, "c-1"),
        stranger.push.page(task.id),
        stranger.push.delete(task.id, "c-1"),
    ):
        with pytest.raises(TaskNotFoundError):
            await asked
    assert [each.id async for each in remote.push.list(task.id)] == ["c-1"]
