"""Periodic work on tasks without a runner: claims unclaimed ones, wakes sleeping ones, recovers
orphans, expires overdue ones, cancels those whose caller never answered, and prunes old ones.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from parley.engine.alarm import Alarm
from parley.engine.description import AgentDescription
from parley.engine.executor import AgentExecutor
from parley.model import backoff
from parley.model.concurrency import end
from parley.push.dispatcher import PushDispatcher
from parley.store.protocols.errors import PrunedElsewhere, StoreError
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.engine")

T = TypeVar("T")

POLL_SECONDS = 1.0
SWEEP_SECONDS = 5.0
PRUNE_SECONDS = 60.0
PRUNE_BATCH = 500


class Maintenance:
    """Polls the store, because hints may be lost.

    - ``POLL_SECONDS``: unclaimed tasks, in one query for all agents, and webhooks without a
      delivering replica. An embedded store is polled only while tasks are queued or after an error.
    - ``SWEEP_SECONDS``: orphans (held by this replica, without a runner since the store failed),
      and overdue tasks.
    - ``PRUNE_SECONDS``: tasks to cancel or to prune, in a separate asyncio task: it may take long.
    - Sleeping tasks are woken by an ``Alarm``, in a separate asyncio task.
    """

    def __init__(
        self,
        store: TaskStore,
        agents: Sequence[AgentDescription],
        executors: Mapping[str, AgentExecutor],
        push: PushDispatcher,
    ) -> None:
        self._store = store
        self._agents = agents
        self._executors = executors
        self._push = push
        self._alarm = Alarm(store, executors, self._try)
        self._pauses: set[asyncio.Future[None]] = set()
        self._running: list[asyncio.Task[None]] = []
        self._fails = False

    async def start(self) -> None:
        """Claim the unclaimed tasks of the store, and start polling. Raises ``StoreError``."""
        counts = await self._store.unclaimed()
        for agent in self._agents:
            found = counts.get(agent.key, 0)
            if found:
                log.info("%s: claims %d unfinished tasks", agent.name, found)
            await self._executors[agent.key].update_backlog(found)
        works = (self._poll(), self._alarm.run(), self._clean_up())
        self._running = [asyncio.create_task(work) for work in works]

    def wake(self) -> None:
        """Do all of it now: the store's clock has jumped.

        Tests that move the clock of a store (``MemoryTaskStore(clock=...)``) call this afterwards:
        sleeping tasks that are due wake up, overdue tasks fail, tasks whose caller never answered
        are canceled, and old tasks are pruned, without waiting for the next poll.
        """
        self._alarm.ring()
        for pause in self._pauses:
            if not pause.done():
                pause.set_result(None)

    async def _pause(self, seconds: float) -> bool:
        """Wait, with jitter: replicas do not poll at the same time. Return whether woken early."""
        pause = asyncio.get_running_loop().create_future()
        self._pauses.add(pause)
        try:
            await asyncio.wait({pause}, timeout=seconds * backoff.uniform(0.8, 1.2))
            return pause.done()
        finally:
            self._pauses.discard(pause)

    def end(self) -> None:
        """Stop polling."""
        for task in self._running:
            task.cancel()

    async def stop(self) -> None:
        """Stop polling, and wait until it has ended."""
        running, self._running = self._running, []
        await end(running)

    async def _poll(self) -> None:
        sweep_at = 0.0
        while True:
            if await self._pause(min(POLL_SECONDS, SWEEP_SECONDS)):
                sweep_at = 0.0
            now = time.monotonic()
            if self._has_to_poll:
                await self._try(self._update_backlogs())
            if self._store.is_shared or self._store.has_operators:
                await self._try(self._push.reconcile())
            if now >= sweep_at:
                sweep_at = now + SWEEP_SECONDS
                await self._try(self._recover_orphans())
                for executor in self._executors.values():
                    await self._try(executor.expire_overdue())

    async def _clean_up(self) -> None:
        """Cancel tasks after ``input_timeout``; prune them after ``retention``."""
        pause = min(POLL_SECONDS, SWEEP_SECONDS)
        while True:
            await self._pause(pause)
            pause = PRUNE_SECONDS
            for agent in self._agents:
                await self._try(self._cancel_unanswered(agent))
            # Batch by batch, so that an agent with many old tasks does not delay the others.
            left = list(self._agents)
            while left:
                left = [agent for agent in left if await self._try(self._prune(agent))]

    async def _try(self, work: Awaitable[T]) -> T | None:
        """Log a failure of ``work``; one of the store once, until the store works again."""
        try:
            return await work
        except PrunedElsewhere:
            pass  # another replica prunes now
        except StoreError as error:
            if not self._fails:
                log.error("the store does not work, tasks at rest wait until it does: %s", error)
            self._fails = True
        except Exception:
            log.exception("the maintenance of tasks failed")
        return None

    @property
    def _has_to_poll(self) -> bool:
        return self._store.is_shared or any(
            executor.queue.backlog or executor.may_have_orphans
            for executor in self._executors.values()
        )

    async def _update_backlogs(self) -> None:
        counts = await self._store.unclaimed()
        self._fails = False
        for agent, executor in self._executors.items():
            await executor.update_backlog(counts.get(agent, 0))

    async def _recover_orphans(self) -> None:
        """Start runners for tasks that this replica holds and no runner has."""
        executors = self._executors.values()
        if not (self._store.is_shared or any(executor.may_have_orphans for executor in executors)):
            return
        held = await self._store.held_tasks()
        if any(executor.claimer.is_running for executor in executors):
            return  # its tasks may be held already, and get their runners soon
        for executor in executors:
            executor.may_have_orphans = False
        try:
            for task_id in held:
                if any(executor.is_running(task_id) for executor in executors):
                    continue
                record = await self._store.load(task_id, history=0, artifacts=False)
                if record is not None and record.scope.agent in self._executors:
                    log.info("task %s is recovered", task_id)
                    self._executors[record.scope.agent].recover(task_id)
        except StoreError:
            for executor in executors:
                executor.may_have_orphans = True
            raise

    async def _cancel_unanswered(self, agent: AgentDescription) -> None:
        if agent.input_timeout is not None:
            before = self._before(agent.input_timeout)
            for task_id in await self._store.awaiting_input(agent.key, before, PRUNE_BATCH):
                await self._executors[agent.key].cancel_unanswered(task_id)

    async def _prune(self, agent: AgentDescription) -> bool:
        """Prune one batch of old tasks; return whether there may be more."""
        if agent.retention is None:
            return False
        before = self._before(agent.retention)
        return await self._store.prune(agent.key, before, PRUNE_BATCH) == PRUNE_BATCH

    def _before(self, span: timedelta) -> int:
        return self._store.now() - span // timedelta(milliseconds=1)
