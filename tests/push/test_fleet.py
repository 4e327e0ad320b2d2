"""Webhooks of a fleet: one replica tells each of them, whichever works on its task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from parley import Agent, Turn
from parley.model.errors import OverloadedError
from parley.model.operations import (
    DeleteTaskPushNotificationConfigRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from parley.model.tasks import Task
from parley.store.memory import MemoryLogs
from parley.store.protocols.claims import SHORTEST_LEASE, Lease
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.webhooks import PushRecord, PushState
from tests.engine.fleet import Fleet, MortalStore, Replica
from tests.kit.waiting import let_time_pass, until
from tests.kit.webhooks import Told, Webhook, webhook

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for webhooks that nobody tells without delay, and sweep only at the start."""
    monkeypatch.setattr("parley.engine.maintenance.POLL_SECONDS", 0.05)
    monkeypatch.setattr("parley.engine.maintenance.SWEEP_SECONDS", 10_000.0)


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
        return_immediately=True, task_push_notification_config=TaskPushNotificationConfig(url=url)
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
            await let_time_pass(0.005)


async def until_told(hook: Webhook, number: int) -> None:
    async with asyncio.timeout(20):
        await until(lambda: len(hook.told) >= number)


async def until_noted(replica: Replica, task_id: str, number: int) -> None:
    """Wait until the store knows that the webhook was told of an event."""
    async with asyncio.timeout(20):
        while (await replica.store.pushes(task_id))[0].cursor < number:
            await let_time_pass(0.005)


async def until_told_by(replica: Replica, task_id: str) -> None:
    """Wait until a replica tells the webhook."""
    async with asyncio.timeout(20):
        while (await replica.store.pushes(task_id))[0].lease_owner != replica.name:
            await let_time_pass(0.005)


async def until_let_go(replica: Replica, task_id: str) -> None:
    """Wait until a replica has nothing to tell of a task."""
    async with asyncio.timeout(20):
        await until(lambda: task_id not in replica.host.push._tasks)


async def until_seen(replica: Replica, task_id: str, count: int) -> None:
    """Wait until there are so many events."""
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
        assert (await settled(api, task.id)).lease_owner in ("", api.name)
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


async def test_a_webhook_is_told_by_hints_and_not_by_polling(fleet: Fleet) -> None:
    counter = Counter()
    api = await fleet.add(counter.agent, role="api", poll=10_000.0)
    worker = await fleet.add(counter.agent, role="worker", poll=10_000.0)
    async with webhook() as hook:
        task = await send(api, hook.url)
        await until_told(hook, 2)
        for n in range(6):
            counter.allowed.release()
            await until_told(hook, n + 3)
        await settled(api, task.id)
        seen = await seen_by(worker, task.id)
        await until_told(hook, len(seen))
        assert numbers(hook) == seen


async def test_who_is_not_its_teller_any_more_says_nothing(mortal_fleet: Fleet) -> None:
    counter = Counter()
    silent = await mortal_fleet.add(counter.agent, role="api")
    async with webhook() as hook:
        other = await mortal_fleet.add(counter.agent)
        task = await send(silent, hook.url)
        await until_told(hook, 2)
        silent.fall_silent()
        await until_told_by(other, task.id)
        for _ in range(6):
            counter.allowed.release()
        await settled(other, task.id)
        await until_let_go(silent, task.id)
        assert numbers(hook) == await seen_by(other, task.id)


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
        # The first is buried for a moment, in which the other tells the next two events.
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


class Forgetful(MortalStore):
    """A replica's store of which the first answer to some questions is lost."""

    def __init__(self, *forgets: str, **options: Any) -> None:
        super().__init__(**options)
        self.forgets = set(forgets)

    def _forget(self, what: str) -> None:
        if what in self.forgets:
            self.forgets.remove(what)
            raise StoreUnavailable("there was no answer")

    async def claim_pushes(self, agent: str, limit: int) -> Any:
        found = await super().claim_pushes(agent, limit)
        if found:
            self._forget("claim_pushes")
        return found

    async def put_push(self, task_id: str, push: PushRecord) -> PushRecord:
        kept = await super().put_push(task_id, push)
        self._forget("put_push")
        return kept


@pytest.mark.parametrize("what", ["claim_pushes", "put_push"])
async def test_a_webhook_is_told_though_nobody_heard_who_tells_it(what: str) -> None:
    logs, lease = MemoryLogs(), Lease(SHORTEST_LEASE)
    stores = [MortalStore(logs=logs, lease=lease), Forgetful(what, logs=logs, lease=lease)]
    fleet = Fleet(lambda: stores.pop(0))
    counter = Counter()
    sure, unsure = await fleet.add(counter.agent), await fleet.add(counter.agent)
    try:
        async with webhook() as hook:
            if what == "put_push":
                asked = sure.request("go", return_immediately=True)
                task = await sure.service.send_message(asked, sure.context)
                assert isinstance(task, Task)
                task_id = task.id
                config = TaskPushNotificationConfig(task_id=task_id, url=hook.url)
                with pytest.raises(OverloadedError):
                    await unsure.service.create_task_push_notification_config(
                        config, unsure.context
                    )
            else:
                task_id = (await send(sure, hook.url)).id
                await until_told(hook, 2)
                await fleet.kill(sure)
            for _ in range(6):
                counter.allowed.release()
            push = await settled(unsure, task_id)
            assert push.cursor == numbers(hook)[-1]
    finally:
        await fleet.close()


async def test_a_configuration_deleted_elsewhere_is_told_no_more(fleet: Fleet) -> None:
    counter = Counter()
    teller, other = await fleet.add(counter.agent), await fleet.add(counter.agent)
    async with webhook() as hook, webhook() as witness:
        task = await send(teller, hook.url)
        await until_told(hook, 2)
        await until_noted(teller, task.id, 2)
        asked = TaskPushNotificationConfig(task_id=task.id, id="witness", url=witness.url)
        await other.service.create_task_push_notification_config(asked, other.context)
        await other.service.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="default"), other.context
        )
        for _ in range(6):
            counter.allowed.release()
        await settled(other, task.id)
        await until_let_go(teller, task.id)
        assert numbers(hook) == [1, 2]
        assert numbers(witness) == (await seen_by(other, task.id))[2:]


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
        await until_let_go(one, task.id)
        (push,) = await one.store.pushes(task.id)
        assert push.config.url == new.url
