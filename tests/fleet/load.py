"""Callers that keep a fleet busy from before its faults until after them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from parley import TaskState
from parley.host.store_urls import open_store
from parley.store.task_store import TaskStore
from tests.fleet.book import Book
from tests.fleet.callers import CALLERS, LONG, Caller, World, client
from tests.fleet.fleet import Fleet
from tests.fleet.ledger import (
    at_rest,
    check_acts,
    check_book,
    check_log,
    check_outcome,
    check_webhooks,
    has_heard_all,
)
from tests.kit.waiting import let_time_pass, until
from tests.kit.webhooks import Webhook, webhook

HOOK_SECONDS = 60.0


class Load:
    """Callers that work until ``over`` is set, and then finish their current task."""

    def __init__(self, fleet: Fleet, hook: Webhook) -> None:
        self.fleet = fleet
        self.hook = hook
        self.book = Book()
        self.over = asyncio.Event()

    async def work(self, world: World, callers: Sequence[Caller]) -> None:
        """Run random callers, one after the other."""
        while not self.over.is_set():
            caller = world.chance.choice(callers)
            try:
                async with asyncio.timeout(LONG):
                    await caller(world)
            except Exception as error:
                error.add_note(f"caller: {caller.__name__}\n{self.fleet.logs()}")
                raise
            self.book.done[caller.__name__] += 1

    async def until(self, done: int, seconds: float = 60.0) -> None:
        """Wait until this many callers have finished in all."""
        async with asyncio.timeout(seconds):
            await until(lambda: self.book.done.total() >= done)


@asynccontextmanager
async def load(
    fleet: Fleet, seed: int, *, callers: Sequence[Caller] = CALLERS, at_once: int = 6
) -> AsyncIterator[Load]:
    """Run callers on a fleet within the context, wait for their end, and check all records."""
    async with AsyncExitStack() as stack:
        made = Load(fleet, await stack.enter_async_context(webhook()))
        worlds = []
        for n in range(at_once):
            agent = await stack.enter_async_context(client(fleet.url))
            chance = random.Random(f"{seed} {n}")
            worlds.append(World(fleet.url, agent, made.book, made.hook, chance))
        async with asyncio.TaskGroup() as working:
            for world in worlds:
                working.create_task(made.work(world, callers))
            try:
                yield made
            finally:
                made.over.set()
        await reckon(made)


@asynccontextmanager
async def opened(fleet: Fleet) -> AsyncIterator[TaskStore]:
    """Open the store of a fleet, as a further replica does."""
    store = open_store(fleet.store)
    await store.open(lambda _: None)
    try:
        yield store
    finally:
        await store.close()


async def reckon(load: Load) -> None:
    """Compare the callers' records with the store."""
    fleet = load.fleet
    if fleet.store.startswith("sqlite:"):
        # Only one process may open the file, so the replica finishes its work and stops first.
        async with client(fleet.url) as agent, asyncio.timeout(HOOK_SECONDS):
            for state in (TaskState.SUBMITTED, TaskState.WORKING):
                while (await agent.list(status=state)).total_size:
                    await let_time_pass(0.1)
        await fleet.replicas[0].end(signal.SIGTERM)
    async with opened(fleet) as store:
        await check_all(store, load)


async def check_all(store: TaskStore, load: Load) -> None:
    """Wait until no work is left, then check every task, stream, act and webhook."""
    fleet, book = load.fleet, load.book
    tasks = await at_rest(store, fleet.logs)
    for each in tasks.values():
        check_log(each)
        check_outcome(each)
    check_book(tasks, book)
    check_acts(tasks, fleet.home / "acts")
    with contextlib.suppress(TimeoutError):  # the check then reports the missing deliveries
        await load.hook.until(lambda told: has_heard_all(tasks, book, told), HOOK_SECONDS)
    check_webhooks(tasks, book, load.hook.told)
    # Every replica returns the same task.
    for replica in fleet.replicas:
        if replica.is_up and replica.options.get("role") != "worker":
            async with client(replica.url) as agent:
                for each in random.Random(0).sample(list(tasks.values()), min(20, len(tasks))):
                    assert await agent.get(each.task.id) == each.task
