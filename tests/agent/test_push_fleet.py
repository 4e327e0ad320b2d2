"""Webhooks of a fleet: one replica tells each of them, whichever works on its task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parley import Agent, Turn
from parley.log.store import PushRecord, PushState
from parley.model.push import TaskPushNotificationConfig
from parley.model.requests import SendMessageConfiguration, SendMessageRequest
from parley.model.tasks import Task
from tests.agent.fleet import Fleet, Replica
from tests.webhooks import Webhook, webhook

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for webhooks that nobody tells without delay."""
    monkeypatch.setattr("parley.agent.sweep.SWEEP_SECONDS", 0.05)


class Counter:
    """An agent that says what it counts, and waits before each but the first number."""

    def __init__(self, numbers: int = 6) -> None:
        self.agent = Agent("Counter")
        self.allowed = asyncio.Semaphore(0)

        @self.agent.skill(replies="task")
        async def count(turn: Turn) -> None:
            for n in range(numbers):
                await turn.working(str(n))
                await self.allowed.acquire()


async def send(replica: Replica, url: str) -> Task:
    asked = replica.request("go", return_immediately=True)
    configuration = SendMessageConfiguration(
        return_immediately=True,
        task_push_notification_config=TaskPushNotificationConfig(url=url),
    )
    request = SendMessageRequest(message=asked.message, configuration=configuration)
    reply = await replica.service.send_message(request, replica.context)
    assert isinstance(reply, Task)
    return reply


async def settled(replica: Replica, task_id: str) -> PushRecord:
    async with asyncio.timeout(20):
        while True:
            (push,) = await replica.store.pushes(task_id)
            if push.state is PushState.DONE:
                return push
            await asyncio.sleep(0.005)


async def until_told(hook: Webhook, number: int) -> None:
    async with asyncio.timeout(20):
        while len(hook.told) < number:
            await asyncio.sleep(0.005)


async def seen_by(replica: Replica, task_id: str) -> list[Any]:
    return [event.seq for event in await replica.store.events(task_id, 0, 1000)]


def numbers(hook: Webhook) -> list[int]:
    """Return the numbers of the events that the webhook was told, in the order of their coming."""
    return [int(told.headers["a2a-notification-id"].rpartition("/")[2]) for told in hook.told]


async def test_a_webhook_hears_of_a_task_that_another_replica_works_on(fleet: Fleet) -> None:
    counter = Counter()
    api = await fleet.add(counter.agent, role="api")
    worker = await fleet.add(counter.agent, role="worker")
    async with webhook() as hook:
        task = await send(api, hook.url)
        for n in range(6):
            await until_told(hook, n + 2)
            counter.allowed.release()
        assert (await settled(api, task.id)).holder in ("", api.name)
        assert numbers(hook) == await seen_by(worker, task.id)


async def test_what_a_dead_teller_did_not_tell_is_told_by_another(mortal_fleet: Fleet) -> None:
    counter = Counter()
    worker = await mortal_fleet.add(counter.agent, role="worker")
    api = await mortal_fleet.add(counter.agent, role="api")
    async with webhook() as hook:
        task = await send(api, hook.url)
        await until_told(hook, 2)
        await mortal_fleet.kill(api)
        for _ in range(6):
            counter.allowed.release()
        await settled(worker, task.id)
        told = numbers(hook)
        assert sorted(set(told)) == await seen_by(worker, task.id)
        assert told == sorted(told)
        assert len(told) - len(set(told)) <= 1  # at least once: the last that the dead one told


async def test_a_configuration_made_anew_elsewhere_is_told_from_there(fleet: Fleet) -> None:
    counter = Counter()
    one, two = await fleet.add(counter.agent), await fleet.add(counter.agent)
    async with webhook() as old, webhook() as new:
        task = await send(one, old.url)
        await until_told(old, 2)
        asked = TaskPushNotificationConfig(task_id=task.id, id="default", url=new.url)
        await two.service.create_task_push_notification_config(asked, two.context)
        for _ in range(6):
            counter.allowed.release()
        await settled(two, task.id)
        events = await seen_by(two, task.id)
        assert numbers(new) == events[-len(new.told) :]
        assert sorted({*numbers(old), *numbers(new)}) == events
        async with asyncio.timeout(20):  # the first finds out when it notes how far it is
            while task.id in one.host.push._tasks:
                await asyncio.sleep(0.005)
        (push,) = await one.store.pushes(task.id)
        assert push.config.url == new.url
