"""Periodic work: on tasks without a runner, on sleeping tasks, and on the event loop.

``Maintenance`` claims, recovers, expires, cancels and prunes tasks; ``Alarm`` wakes sleeping tasks;
``LoopWatchdog`` warns when a function blocks the event loop (E6).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import TypeVar

from parley.engine.description import AgentDescription
from parley.engine.executor import AgentExecutor
from parley.model import backoff
from parley.model.concurrency import end
from parley.observe import metrics
from parley.push.dispatcher import PushDispatcher
from parley.store.protocols.errors import PrunedElsewhere, StoreError
from parley.store.protocols.tables import NEVER
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.engine")

T = TypeVar("T")

POLL_SECONDS = 1.0
SWEEP_SECONDS = 5.0
PRUNE_SECONDS = 60.0
PRUNE_BATCH = 500


class Maintenance:
    """Polls the store, because wake-up notifications may be lost.

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
        """Do all periodic work now, because the store's clock has jumped.

        Tests that set the clock of a store (``MemoryTaskStore(clock=...)``) call this afterwards:
        sleeping tasks that are due wake up, overdue tasks fail, tasks whose caller never answered
        are canceled, and old tasks are pruned, without waiting for the next poll.
        """
        self._alarm.ring()
        for pause in self._pauses:
            if not pause.done():
                pause.set_result(None)

    async def _pause(self, seconds: float) -> bool:
        """Wait, with jitter so that replicas poll at different times. Return whether woken
        early."""
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
            # In batches, so that an agent with many old tasks does not delay other agents.
            left = list(self._agents)
            while left:
                left = [agent for agent in left if await self._try(self._prune(agent))]

    async def _try(self, work: Awaitable[T]) -> T | None:
        """Await ``work`` and log its failure; store failures are logged once until the store
        works."""
        try:
            return await work
        except PrunedElsewhere:
            pass  # another replica is pruning
        except StoreError as error:
            if not self._fails:
                log.error("the store does not work, idle tasks wait until it does: %s", error)
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
        """Start runners for tasks that this replica holds without a runner."""
        executors = self._executors.values()
        if not (self._store.is_shared or any(executor.may_have_orphans for executor in executors)):
            return
        held = await self._store.held_tasks()
        if any(executor.claimer.is_running for executor in executors):
            return  # claimed tasks may not have their runners yet
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
        if agent.execution.input_timeout is not None:
            before = self._before(agent.execution.input_timeout)
            for task_id in await self._store.awaiting_input(agent.key, before, PRUNE_BATCH):
                await self._executors[agent.key].cancel_unanswered(task_id)

    async def _prune(self, agent: AgentDescription) -> bool:
        """Prune one batch of old tasks; return whether there may be more."""
        if agent.retention.tasks is None:
            return False
        before = self._before(agent.retention.tasks)
        return await self._store.prune(agent.key, before, PRUNE_BATCH) == PRUNE_BATCH

    def _before(self, span: timedelta) -> int:
        return self._store.now() - span // timedelta(milliseconds=1)


LONGEST_WAIT = 5.0
"""The interval of polls for sleeping tasks in a shared store while none is known. Also the maximum
time between two looks at the clock of an embedded store while a task sleeps: the clock may be set,
and a machine may be suspended.
"""

WAKE_BATCH = 500
"""The number of tasks of an agent that are woken at a time."""


class Alarm:
    """Waits for the next due time, and makes the due tasks claimable.

    An embedded store is not queried while no task sleeps. Sleeps that begin in this process, and
    events that are completed in it, are noticed at once (``listen_timers``); changes by other
    processes are found by polling. ``attempt`` awaits work, and returns ``None`` if it failed.
    """

    def __init__(
        self,
        store: TaskStore,
        executors: Mapping[str, AgentExecutor],
        attempt: Callable[[Awaitable[bool]], Awaitable[bool | None]],
    ) -> None:
        self._store = store
        self._executors = executors
        self._try = attempt
        self._agents = [agent for agent, each in executors.items() if each.runs_turns]
        self._next: int | None = None
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Check the store's clock and the store now."""
        self._next = 0
        self._rung.set()

    def changed(self, wakes_at: int) -> None:
        """Record that a task of this process sleeps until a time (ms)."""
        if self._next is None or wakes_at < self._next:
            self._next = wakes_at
            self._rung.set()

    async def run(self) -> None:
        """Wake tasks for ever, beginning with due ones."""
        if not self._agents:
            return
        self._store.listen_timers(self.changed)
        self._next = 0
        while True:
            self._rung.clear()
            is_due = self._next is not None and self._next <= self._store.now()
            is_known = True
            if is_due or self._store.is_shared:
                is_known = bool(await self._try(self._wake_due()))
                if not is_known:
                    self._next = 0  # check again, whatever was noticed meanwhile
            await self._wait(is_known=is_known)

    async def _wait(self, *, is_known: bool) -> None:
        """Wait until the next check, or until ``ring``."""
        longest = LONGEST_WAIT
        if not is_known or (self._store.is_shared and self._next is not None):
            longest = POLL_SECONDS * backoff.uniform(0.8, 1.2)
        elif not self._store.is_shared and self._next in (None, NEVER):
            await self._rung.wait()
            return
        if is_known and self._next is not None:
            longest = min(longest, max(0, self._next - self._store.now()) / 1000)
        if longest > 0:
            try:
                async with asyncio.timeout(longest):
                    await self._rung.wait()
            except TimeoutError:
                pass

    async def _wake_due(self) -> bool:
        """Wake due tasks. Return whether the next due time is known. Raises ``StoreError``."""
        while True:
            self._next = NEVER
            found = await self._store.next_wake(self._agents)
            heard, now = self._next, self._store.now()
            if found is not None and found <= now:
                self._next = found
                woken = [await self._executors[a].wake_due(now, WAKE_BATCH) for a in self._agents]
                if not any(woken):
                    return False  # another replica is waking them
            elif heard > now:  # not rung meanwhile
                next_wake = min(heard, NEVER if found is None else found)
                self._next = None if found is None and heard == NEVER else next_wake
                return True


BEAT_SECONDS = 0.25
BLOCKED_SECONDS = 1.0

_looking = threading.Lock()


class LoopWatchdog:
    """Watches the event loop's heartbeat from a thread.

    Logs one warning each time that the loop is blocked for ``threshold`` seconds, with the stack of
    the loop's thread.
    """

    def __init__(self, threshold: float = BLOCKED_SECONDS) -> None:
        self._threshold = threshold
        self._last_beat = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread_id = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._stopped.clear()
        self._beat()
        self._thread = threading.Thread(target=self._watch, name="parley-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _beat(self) -> None:
        before, self._last_beat = self._last_beat, time.monotonic()
        if metrics.current is not None and self._timer is not None:
            late = self._last_beat - before - BEAT_SECONDS
            metrics.current.of("loop").observe(max(0.0, late))
        assert self._loop is not None
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _watch(self) -> None:
        warned = False
        now, used = time.monotonic(), time.process_time()
        while not self._stopped.wait(BEAT_SECONDS):
            before, used_before = now, used
            now, used = time.monotonic(), time.process_time()
            if now - before > self._threshold and used - used_before < (now - before) / 2:
                continue  # the whole process or machine was suspended, not the loop
            late = now - self._last_beat
            if late < self._threshold:
                warned = False
            elif not warned:
                warned = True
                self._warn(late)

    def _warn(self, late: float) -> None:
        assert self._loop is not None
        frame = frame_of(self._thread_id)
        if frame is None or self._loop.is_closed():
            return
        log.warning(
            "the event loop has been blocked for %.1f s, and with it every task and stream; "
            "an `async def` must await slow work, where a plain `def` runs in a thread; "
            "`send` and `ask` of an extension must return at once. It is stuck here:\n%s",
            late,
            "".join(traceback.format_stack(frame)[-8:]),
        )


def frame_of(thread_id: int) -> FrameType | None:
    """Return the current frame of a thread, ``None`` if it has ended.

    CPython holds its lock on threads during the call. If garbage were collected there, a finalizer
    could pass the GIL to a thread that needs that lock, and the process would hang for ever. So
    garbage collection is disabled, and only one thread at a time does this.
    """
    with _looking:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread_id)
        finally:
            if collects:
                gc.enable()
