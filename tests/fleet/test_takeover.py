"""Other replicas claim a dead replica's tasks, and its late writes are rejected."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import Any, cast

import pytest

import parley
from parley import Task, TaskState
from tests.fleet.book import Book
from tests.fleet.callers import PATIENT, World, client
from tests.fleet.conftest import FleetOf
from tests.fleet.fleet import Fleet, Replica
from tests.fleet.ledger import check_acts, check_book, check_log, check_outcome, kept, numbers
from tests.fleet.load import opened
from tests.kit.waiting import let_time_pass

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.service]

BOUND = 60.0


async def begin(replica: Replica, skill: str, text: str) -> Task:
    """Have a replica begin a task."""
    async with client(replica.url) as agent:
        task = await agent.send(text, message_metadata={"skill": skill}, return_immediately=True)
    assert task.id
    return task


async def holder_of(fleet: Fleet, task_id: str) -> str:
    """Return the lease owner of a task from the store."""
    async with opened(fleet) as store:
        record = await store.load(task_id)
        assert record is not None
        return record.lease_owner


async def until_held_by_another(fleet: Fleet, task_id: str, lease_owner: str) -> None:
    """Wait until another replica owns the task's lease, or the task has ended."""
    async with opened(fleet) as store, asyncio.timeout(BOUND):
        while True:
            record = await store.load(task_id)
            assert record is not None
            if record.lease_owner not in ("", lease_owner) or record.task.state.is_terminal:
                return
            await let_time_pass(0.05)


async def read_all(fleet: Fleet, replica: Replica, task_id: str) -> list[Any]:
    """Read all events of a task from one replica."""
    async with client(replica.url) as agent:
        return [event async for event in agent.subscribe(task_id, after=0)]


async def test_a_task_goes_on_elsewhere_and_so_does_its_stream(fleet_of: FleetOf) -> None:
    async with fleet_of(2) as fleet, asyncio.timeout(BOUND):
        one, other = fleet.replicas
        task = await begin(one, "report", "100 20")
        reader = asyncio.create_task(read_all(fleet, other, task.id))
        await let_time_pass(0.5)
        await one.end()
        events = await reader
        assert events[-1].status.state is TaskState.COMPLETED
        async with opened(fleet) as store:
            check_log(found := await kept(store, task.id))
        assert len(found.events) == len(events)
        assert "".join(a.text for a in found.task.artifacts) == numbers(100)


async def test_a_hundred_streams_outlive_a_replica(fleet_of: FleetOf) -> None:
    async with fleet_of(3) as fleet, client(fleet.url) as agent, asyncio.timeout(BOUND):
        book = Book()
        world = World(fleet.url, agent, book, cast("Any", None), random.Random(0))
        began = await asyncio.gather(*(world.begin("report", "15 200") for _ in range(100)))
        async with asyncio.TaskGroup() as readers:
            for task in began:
                readers.create_task(world.watch(task.id))
            await let_time_pass(1.0)
            await fleet.replicas[0].end()
        assert book.refused["watcher"] > 10, "few streams were open on the dead replica"
        async with opened(fleet) as store:
            found = {task.id: await kept(store, task.id) for task in began}
        for each in found.values():
            check_log(each)
            check_outcome(each)
        check_book(found, book)


async def test_who_wakes_up_too_late_is_not_heard(fleet_of: FleetOf) -> None:
    async with fleet_of(2) as fleet, asyncio.timeout(BOUND):
        one, other = fleet.replicas
        report = await begin(one, "report", "150 20")
        steps = await begin(one, "steps", "50")
        await let_time_pass(0.3)
        lease_owner = await holder_of(fleet, report.id)
        assert lease_owner
        one.tell(signal.SIGSTOP)
        await until_held_by_another(fleet, report.id, lease_owner)
        one.tell(signal.SIGCONT)  # and it continues to write, as if nothing had happened
        async with client(other.url) as agent:
            for task, text in ((report, numbers(150)), (steps, numbers(50).strip())):
                done = await agent.wait(task.id)
                assert (done.state, "".join(a.text for a in done.artifacts)) == (
                    TaskState.COMPLETED,
                    text,
                )
        async with opened(fleet) as store:
            found = {id: await kept(store, id) for id in (report.id, steps.id)}
        for each in found.values():
            check_log(each)
        check_acts(found, fleet.home / "acts")
        # Both replicas return the same events, from the beginning.
        assert await read_all(fleet, one, report.id) == await read_all(fleet, other, report.id)
        async with client(one.url) as agent:
            assert (await agent.get(report.id)).state is TaskState.COMPLETED


async def test_whoever_waits_for_a_task_is_answered_by_another_replica(fleet_of: FleetOf) -> None:
    async with (
        asyncio.timeout(BOUND),
        fleet_of(2) as fleet,
        parley.connect(fleet.url, retries=PATIENT) as agent,
    ):
        waiting = [
            asyncio.create_task(agent.send("15", message_metadata={"skill": "slow"}))
            for _ in range(10)
        ]
        await let_time_pass(0.4)
        await fleet.replicas[0].end()
        for answer in await asyncio.gather(*waiting):
            assert answer.id
            assert answer.state is TaskState.COMPLETED
        # Each message has one task, even if it was sent again.
        assert (await agent.list()).total_size == 10


async def test_a_task_is_canceled_from_any_replica(fleet_of: FleetOf) -> None:
    async with fleet_of(3) as fleet, asyncio.timeout(BOUND):
        for runner, canceler in ((0, 1), (1, 2), (2, 0)):
            task = await begin(fleet.replicas[runner], "forever", "go")
            async with client(fleet.replicas[canceler].url) as agent:
                assert (await agent.cancel(task.id)).state is TaskState.CANCELED
        # A task with a dead owner can be canceled too, by the replica that claims it.
        task = await begin(fleet.replicas[0], "forever", "go")
        await fleet.replicas[0].end()
        async with client(fleet.replicas[1].url) as agent:
            assert (await agent.cancel(task.id)).state is TaskState.CANCELED
        async with opened(fleet) as store:
            check_log(await kept(store, task.id))
            assert not await store.unclaimed()
