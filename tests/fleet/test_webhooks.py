"""Webhooks of a fleet whose delivering replicas die, pause or lose the store: every event arrives
in order, with at most one repeat per fault and webhook."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable

import pytest

from parley.store.protocols.webhooks import ATTEMPTS_KEPT, PushState
from tests.fleet.callers import client
from tests.fleet.conftest import FleetOf
from tests.fleet.fleet import Fleet, Replica
from tests.fleet.ledger import check_log, kept
from tests.fleet.load import opened
from tests.fleet.settings import schedules
from tests.kit.processes import free_port
from tests.kit.waiting import let_time_pass
from tests.kit.webhooks import Told, Webhook, webhook

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.service]

BOUND = 120.0
WEBHOOKS = 12

Fault = Callable[[Fleet, Replica], Awaitable[None]]


async def kill(fleet: Fleet, replica: Replica) -> None:
    await replica.end()
    await replica.start()


async def stop(fleet: Fleet, replica: Replica) -> None:
    """Pause a replica until other replicas have claimed its work."""
    replica.tell(signal.SIGSTOP)
    await let_time_pass(3 * fleet.lease)
    replica.tell(signal.SIGCONT)


async def cut(fleet: Fleet, replica: Replica) -> None:
    """Cut all replicas off the store, for longer than a lease and then for a moment."""
    for seconds in (3 * fleet.lease, 0.1):
        fleet.lines[0].refuse()
        fleet.lines[0].cut()
        await let_time_pass(seconds)
        await fleet.lines[0].accept()
        await let_time_pass(0.3)


async def begin(replica: Replica, url: str, text: str) -> str:
    """Have a replica begin a task with a webhook, and return the task's id."""
    async with client(replica.url) as agent:
        task = await agent.send(
            text, message_metadata={"skill": "report"}, return_immediately=True, push=url
        )
    assert task.id
    return task.id


async def check(fleet: Fleet, hook: Webhook, tasks: dict[str, str], faults: int) -> None:
    """Wait until all tasks have ended and their webhooks are notified; then compare."""
    async with opened(fleet) as store:
        for path, task_id in tasks.items():
            found = await kept(store, task_id)
            while not found.task.state.is_terminal:
                await let_time_pass(0.1)
                found = await kept(store, task_id)
            check_log(found)
            last = found.record.seq

            def is_told(told: list[Told], path: str = path, last: int = last) -> bool:
                return any((each.path, each.number) == (path, last) for each in told)

            await hook.until(is_told, BOUND)
            heard = [each.number for each in hook.told if each.path == path]
            assert list(dict.fromkeys(heard)) == list(range(1, last + 1)), (path, heard)
            assert len(heard) - last <= faults, (path, heard)


@pytest.mark.parametrize("seed", range(schedules(1)))
@pytest.mark.parametrize(("fault", "most"), [(kill, 1), (stop, 1), (cut, 2)])
async def test_a_webhook_is_told_everything_and_one_event_again_for_a_fault(
    fleet_of: FleetOf, fault: Fault, most: int, seed: int
) -> None:
    chance = random.Random(seed)
    roles = chance.choice([("api", "worker", "worker"), ("both", "both", "both")])
    async with (
        asyncio.timeout(BOUND),
        fleet_of(3, roles=roles, lines=fault is cut) as fleet,
        webhook() as hook,
    ):
        teller = fleet.replicas[0]
        base = hook.url.removesuffix("/hook")
        tasks = {
            f"/{n}": await begin(teller, f"{base}/{n}", f"{chance.randrange(60, 150)} 20")
            for n in range(WEBHOOKS)
        }
        for _ in range(2):
            await let_time_pass(chance.uniform(0.2, 1.0))
            await fault(fleet, teller)
        await check(fleet, hook, tasks, 2 * most)


async def test_a_configuration_deleted_at_another_replica_is_told_no_more(
    fleet_of: FleetOf,
) -> None:
    async with asyncio.timeout(BOUND), fleet_of(2) as fleet, webhook() as hook:
        one, other = fleet.replicas
        task_id = await begin(one, hook.url, "200 10")
        await hook.until(lambda told: len(told) > 5)
        async with client(other.url) as agent:
            await agent.push.delete(task_id, "default")
            told = len(hook.told)
            async for _ in agent.subscribe(task_id, after=0):
                pass
        # A delivery may have been in progress at the deletion.
        assert len(hook.told) <= told + 1


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_replicas_receivers_and_the_store_die_and_nothing_is_lost(
    fleet_of: FleetOf, seed: int
) -> None:
    """Check both kinds of webhooks: every event, and each state with the complete artifact."""
    chance = random.Random(seed)
    async with asyncio.timeout(2 * BOUND), fleet_of(2) as fleet:
        port = free_port()
        base = f"http://127.0.0.1:{port}"
        one = fleet.replicas[0]
        told: list[Told] = []
        tasks = {
            f"/{n}": await begin(one, f"{base}/{n}", f"{chance.randrange(60, 120)} 20")
            for n in range(4)
        }
        async with client(one.url) as agent:
            for n in range(4, 8):
                task = await agent.send(
                    f"{chance.randrange(60, 120)} 20",
                    message_metadata={"skill": "report"},
                    return_immediately=True,
                    push=f"{base}/{n}",
                )
                assert task.id
                await agent.push.set_events(task.id, "default", "significant")
                tasks[f"/{n}"] = task.id
        for fault in ("replica", "store", "receiver"):
            async with webhook(port) as hook:
                hook.answer = lambda _: 200 if chance.random() < 0.8 else 503
                await let_time_pass(chance.uniform(0.3, 1.0))
                if fault == "replica":
                    await kill(fleet, chance.choice(fleet.replicas))
                elif fault == "store":
                    await asyncio.to_thread(fleet.postgres.kill)
                    await asyncio.to_thread(fleet.postgres.start)
                told += hook.told
            await let_time_pass(0.3)
        async with webhook(port) as hook, opened(fleet) as store:
            for path, task_id in tasks.items():
                while not (await kept(store, task_id)).task.state.is_terminal:
                    await let_time_pass(0.1)
                while (await store.pushes(task_id))[0].state is PushState.ACTIVE:
                    await let_time_pass(0.1)
                found = await kept(store, task_id)
                heard = [each for each in told + hook.told if each.path == path]
                numbers = list(dict.fromkeys(each.number for each in heard))
                assert numbers == sorted(numbers), (path, numbers)
                if int(path[1:]) < 4:
                    assert numbers == list(range(1, found.record.seq + 1)), (path, numbers)
                    continue
                assert numbers[-1] == found.record.seq
                last = [each.json for each in heard if "artifactUpdate" in each.json][-1]
                parts = last["artifactUpdate"]["artifact"]["parts"]
                assert "".join(part["text"] for part in parts) == found.task.artifacts[0].text
                attempts = await store.push_attempts(task_id, "default")
                assert 0 < len(attempts) <= ATTEMPTS_KEPT
