"""Webhooks of several replicas: one replica delivers to each webhook, wherever the task runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from parley import Agent, Turn
from parley.model.operations import (
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from parley.model.tasks import Task
from parley.store.protocols.webhooks import PushRecord, PushState
from tests.engine.fleet import Fleet, MortalStore, Replica
from tests.kit.waiting import let_time_pass, until
from tests.kit.webhooks import Told, Webhook, webhook

pytestmark = pytest.mark.anyio


async def until_let_go(replica: Replica, task_id: str) -> None:
    """Wait until a replica has nothing to tell of a task."""
    async with asyncio.timeout(20):
        await until(lambda: task_id not in replica.host.push._tasks)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll for webhooks without a deliverer often, and sweep only at the start."""
    monkeypatch.setattr("parley.engine.maintenance.POLL_SECONDS", 0.05)
    monkeypatch.setattr("parley.engine.maintenance.SWEEP_SECONDS", 10_000.0)


class Counter:
    """An agent that streams numbers, and waits before each number except the first."""

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
        return_immediately=True, task_push_notification_config=TaskPushNotificationConfig(url=url)
    )
    request = SendMessageRequest(message=asked.message, configuration=configuration)
    reply = await replica.service.send_message(request, replica.context)
    assert reply.id
    return reply


async def settled(replica: Replica, task_id: str) -> PushRecord:
    async with asyncio.timeout(20):
        while True:
            (push,) = await replica.store.pushes(task_id)
            if push.state is PushState.DONE:
                return push
            await let_time_pass(0.005)


async def until_told(hook: Webhook, number: int) -> None:
    async with asyncio.timeout(20):
        await until(lambda: len(hook.told) >= number)


async def until_noted(replica: Replica, task_id: str, number: int) -> None:
    """Wait until the store records that an event was delivered."""
    async with asyncio.timeout(20):
        while (await replica.store.pushes(task_id))[0].cursor < number:
            await let_time_pass(0.005)


async def until_seen(replica: Replica, task_id: str, count: int) -> None:
    """Wait until the webhook has received a number of events."""
    async with asyncio.timeout(20):
        while len(await seen_by(replica, task_id)) < count:
            await let_time_pass(0.005)


async def ended_in(replica: Replica, task_id: str) -> None:
    """Wait until a task has ended."""
    async with asyncio.timeout(20):
        while True:
            record = await replica.store.load(task_id)
            if record is not None and record.task.state.is_terminal:
                return
            await let_time_pass(0.005)


async def seen_by(replica: Replica, task_id: str) -> list[Any]:
    return [event.seq for event in await replica.store.events(task_id, 0, 1000)]


def numbers(hook: Webhook) -> list[int]:
    """Return the event numbers in the order in which the webhook received them."""
    return [int(told.headers["a2a-notification-id"].rpartition("/")[2]) for told in hook.told]


@pytest.mark.slow
async def test_a_crash_repeats_one_event(mortal_fleet: Fleet) -> None:
    counter = Counter(12)
    for _ in range(12):
        counter.allowed.release()
    dying = await mortal_fleet.add(counter.agent, role="api")
    other = await mortal_fleet.add(counter.agent)
    ended = asyncio.Event()
    dead: list[Replica] = []

    async def answer(told: Told) -> int:
        await ended.wait()
        if told.number == 9 and not dead:
            dead.append(dying)
            await mortal_fleet.kill(dying)
        return 200

    async with webhook() as hook:
        hook.answer = answer
        task = await send(dying, hook.url)
        await ended_in(other, task.id)
        ended.set()
        await settled(other, task.id)
        events = await seen_by(other, task.id)
        assert numbers(hook) == [*events[:9], *events[8:]]


async def test_a_webhook_that_comes_back_goes_on_where_it_is_by_then(mortal_fleet: Fleet) -> None:
    counter = Counter()
    one = await mortal_fleet.add(counter.agent)
    other = mortal_fleet.new_replica()
    assert isinstance(one.store, MortalStore)
    assert isinstance(other, MortalStore)
    await other.open(lambda _: None)
    async with webhook() as hook:
        task = await send(one, hook.url)
        await until_told(hook, 2)
        await until_noted(one, task.id, 2)
        # The first replica loses its lease for a moment; the second delivers the next two events.
        log = one.store._logs[task.id]
        free = replace(log.pushes["default"], lease_owner="")
        one.store._index.set_pushes(log, {"default": free})
        assert await other.claim_pushes(one.executor.agent, 10) == [(task.id, False)]
        counter.allowed.release()
        counter.allowed.release()
        await until_seen(one, task.id, 4)
        assert await other.save_delivery(task.id, replace(log.pushes["default"], cursor=4))
        await other.close()
        back = replace(log.pushes["default"], lease_owner=one.name)
        one.store._index.set_pushes(log, {"default": back})
        for _ in range(4):
            counter.allowed.release()
        await settled(one, task.id)
        first, second, _, _, *rest = await seen_by(one, task.id)
        assert numbers(hook) == [first, second, *rest]


async def test_who_loses_a_webhook_among_many_events_repeats_one(mortal_fleet: Fleet) -> None:
    counter = Counter(12)
    for _ in range(12):
        counter.allowed.release()
    silent = await mortal_fleet.add(counter.agent, role="api")
    other = await mortal_fleet.add(counter.agent)
    ended, lost = asyncio.Event(), asyncio.Event()
    waited: set[int] = set()

    async def answer(told: Told) -> int:
        gate = {1: ended, 3: lost}.get(told.number)
        if gate is not None and told.number not in waited:
            waited.add(told.number)
            await gate.wait()
        return 200

    async with webhook() as hook:
        hook.answer = answer
        task = await send(silent, hook.url)
        await ended_in(other, task.id)
        ended.set()
        await until_told(hook, 3)  # and the answer to the third waits
        silent.fall_silent()
        await settled(other, task.id)
        lost.set()
        await until_let_go(silent, task.id)
        first, second, *rest = await seen_by(other, task.id)
        assert numbers(hook) == [first, second, 3, *rest]


async def test_a_webhook_that_hangs_holds_up_nobody_in_a_fleet(fleet: Fleet) -> None:
    counter = Counter()
    api = await fleet.add(counter.agent, role="api")
    await fleet.add(counter.agent, role="worker")
    never = asyncio.Event()

    async def hang(told: Told) -> int:
        await never.wait()
        return 200

    async with webhook() as slow, webhook() as hook:
        slow.answer = hang
        for _ in range(5):
            await send(api, slow.url.replace("127.0.0.1", "127.0.0.2"))
        task = await send(api, hook.url)
        for _ in range(6 * 6):
            counter.allowed.release()
        await settled(api, task.id)
        assert numbers(hook) == await seen_by(api, task.id)
        never.set()
