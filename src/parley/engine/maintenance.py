"""Looks after the tasks that no lane looks after: those that nobody holds, that were forgotten,
that wait too long, that were kept long enough.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from parley.agent.agent import Agent
from parley.engine.executor import AgentExecutor
from parley.push.dispatcher import PushDispatcher
from parley.store import jitter
from parley.store.ending import end
from parley.store.task_store import PrunedElsewhere, StoreError, TaskStore

log = logging.getLogger("parley.agent")

T = TypeVar("T")

LOOK_SECONDS = 1.0
SWEEP_SECONDS = 5.0
PRUNE_SECONDS = 60.0
PRUNE_BATCH = 500


class Maintenance:
    """Looks into the store for what no hint told of.

    Every second or so for work that nobody holds, with one question for all agents, and another for
    webhooks that nobody tells; every few for tasks that this replica holds and works on no longer,
    since the store failed it, and for those whose time is over. An embedded store is asked for
    work only while there is a line, or after trouble. Every minute for those to cancel or to
    remove: that may take long, and is a task of its own, for which no work waits.
    """

    def __init__(
        self,
        store: TaskStore,
        agents: Sequence[Agent],
        executors: Mapping[str, AgentExecutor],
        push: PushDispatcher,
    ) -> None:
        self._store = store
        self._agents = agents
        self._executors = executors
        self._push = push
        self._running: list[asyncio.Task[None]] = []
        self._fails = False

    async def start(self) -> None:
        """Begin with what is there. Raises ``StoreError``."""
        counts = await self._store.unclaimed()
        for agent in self._agents:
            found = counts.get(agent.key, 0)
            if found:
                log.info("%s: %d unfinished tasks are taken up", agent.name, found)
            await self._executors[agent.key].look(found)
        self._running = [asyncio.create_task(work) for work in (self._run(), self._tidy())]

    def end(self) -> None:
        """Look no further."""
        for task in self._running:
            task.cancel()

    async def stop(self) -> None:
        """Look no further, and wait for what is under way."""
        running, self._running = self._running, []
        await end(running)

    async def _run(self) -> None:
        sweep_at = 0.0
        while True:
            # Not all replicas at the same moment.
            await asyncio.sleep(min(LOOK_SECONDS, SWEEP_SECONDS) * jitter.uniform(0.8, 1.2))
            now = time.monotonic()
            if self._has_to_look:
                await self._try(self._look())
            if self._store.is_shared or self._store.has_operators:
                await self._try(self._push.reconcile())
            if now >= sweep_at:
                sweep_at = now + SWEEP_SECONDS
                await self._try(self._find_forgotten())
                for executor in self._executors.values():
                    await self._try(executor.end_late())

    async def _tidy(self) -> None:
        """Cancel what has waited for its caller too long; remove what was kept long enough."""
        pause = min(LOOK_SECONDS, SWEEP_SECONDS)
        while True:
            await asyncio.sleep(pause * jitter.uniform(0.8, 1.2))
            pause = PRUNE_SECONDS
            for agent in self._agents:
                await self._try(self._cancel_parked(agent))
            # In turns, so that an agent with much to remove does not keep others from theirs.
            left = list(self._agents)
            while left:
                left = [agent for agent in left if await self._try(self._prune(agent))]

    async def _try(self, work: Awaitable[T]) -> T | None:
        """Do something that may fail, and say so in the server's log, once for each trouble."""
        try:
            return await work
        except PrunedElsewhere:
            pass  # one replica at a time is enough
        except StoreError as error:
            if not self._fails:
                log.error("the store does not work, tasks at rest wait until it does: %s", error)
            self._fails = True
        except Exception:
            log.exception("looking after tasks failed")
        return None

    @property
    def _has_to_look(self) -> bool:
        return self._store.is_shared or any(
            executor.line.count or executor.troubled for executor in self._executors.values()
        )

    async def _look(self) -> None:
        counts = await self._store.unclaimed()
        self._fails = False
        for agent, executor in self._executors.items():
            await executor.look(counts.get(agent, 0))

    async def _find_forgotten(self) -> None:
        """Take up the tasks that this replica holds and that no lane of it works on."""
        executors = self._executors.values()
        if not (self._store.is_shared or any(executor.troubled for executor in executors)):
            return
        held = await self._store.held_tasks()
        if any(executor.adoption.is_running for executor in executors):
            return  # it may hold some that it is not told of yet
        for executor in executors:
            executor.troubled = False
        try:
            for task_id in held:
                if any(executor.knows(task_id) for executor in executors):
                    continue
                record = await self._store.load(task_id, history=0, artifacts=False)
                if record is not None and record.scope.agent in self._executors:
                    log.info("task %s is taken up again", task_id)
                    self._executors[record.scope.agent].take_up(task_id)
        except StoreError:
            for executor in executors:
                executor.troubled = True
            raise

    async def _cancel_parked(self, agent: Agent) -> None:
        if agent.input_timeout is not None:
            before = self._before(agent.input_timeout)
            for task_id in await self._store.parked(agent.key, before, PRUNE_BATCH):
                await self._executors[agent.key].give_up(task_id)

    async def _prune(self, agent: Agent) -> bool:
        """Remove a few tasks that were kept long enough; return whether there may be more."""
        if agent.retention is None:
            return False
        before = self._before(agent.retention)
        return await self._store.prune(agent.key, before, PRUNE_BATCH) == PRUNE_BATCH

    def _before(self, span: timedelta) -> int:
        return self._store.now() - span // timedelta(milliseconds=1)
