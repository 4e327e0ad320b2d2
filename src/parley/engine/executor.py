"""Runs the turns of one agent in this process.

``AgentService`` submits messages and cancellations; ``Maintenance`` reports unclaimed tasks. The
function that calls the author's function is a parameter (``invoke``), and so is the function that
cancels tasks at other agents (``cancel_calls``): the engine does not import ``agent/``.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from parley.engine.caller import kept, record_of
from parley.engine.capacity import Claimer, FairQueue, ThreadPool
from parley.engine.description import AgentDescription
from parley.engine.replies import RemoteReplies, ReplyHandle, ReplyWait, SharedTimer, TaskReference
from parley.engine.turn.attempt import Attempt, RemoteCall, Request
from parley.engine.turn.replay import Deadlines, first_events, first_turn_receipts
from parley.engine.turn.task_runner import TaskRunner
from parley.engine.turn.task_writer import OutputFilters
from parley.engine.turn.usage import AgentMeter
from parley.model.concurrency import end
from parley.model.errors import A2AError, OverloadedError, shutting_down
from parley.model.ids import new_id
from parley.model.service import ANONYMOUS, Caller
from parley.push.dispatcher import PushDispatcher
from parley.store.bus.subscriptions import LocalHints
from parley.store.events import CancelRequested, Scope
from parley.store.protocols.claims import Claimed
from parley.store.protocols.errors import DuplicateReceipt, StoreError, TaskEnded, UnknownTask
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import Append, TaskRecord
from parley.store.protocols.webhooks import PushRecord
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.engine")

T = TypeVar("T")

SUSPENDED_BATCH = 10_000
"""The maximum number of suspended tasks whose deadlines are checked at a time."""

CANCEL_SECONDS = 20.0
"""The time that a caller waits for a cancellation, in addition to the function's grace period:
longer than the detection of a dead replica takes.
"""

REPLY_SECONDS = 0.7
"""The time that callers wait during a shutdown for another replica to finish their released turns:
the server gives their requests a second.
"""

LAST_SECONDS = 1.0
"""The time for turns to release their tasks after a cancelled shutdown, and for background
operations at the end.
"""

UNANSWERED = "input_timeout"
"""The reason of a cancellation by the server: the caller never answered."""


class AgentExecutor:
    """Owns every task runner of one agent in this process: starts, wakes, cancels and ends them.

    A message without capacity becomes an unclaimed task in the store. Any replica with capacity
    claims it, as it claims the tasks of a dead replica whose lease has expired. ``runs_turns`` is
    false for an executor that leaves turns to other processes, except for turns of skills that
    cannot have a task. ``notify`` is called with the agent's key when there are tasks to claim.
    ``invoke`` calls the author's function; ``cancel_calls`` cancels a task's calls of other agents,
    raises nothing, and takes a bounded time. ``meter`` measures the output of turns.
    ``shows_errors``: callers get the details of exceptions, for development on one machine.
    ``may_have_orphans``: the replica may hold tasks without a runner.
    """

    def __init__(
        self,
        store: TaskStore,
        *,
        agent: AgentDescription,
        invoke: Callable[[Attempt], Awaitable[object]],
        cancel_calls: Callable[[str, Mapping[str, RemoteCall]], Awaitable[None]],
        threads: ThreadPool,
        push: PushDispatcher,
        notify: Callable[[str], None],
        hints: LocalHints,
        runs_turns: bool = True,
        meter: AgentMeter | None = None,
        shows_errors: bool = False,
    ) -> None:
        self.store = store
        self.meter = meter
        self.shows_errors = shows_errors
        self.agent = agent.key
        self.skills = agent.skills
        self.default_skill = agent.default_skill
        self.options = options = agent.execution
        self.retention = agent.retention
        self.invoke = invoke
        self.cancel_calls = cancel_calls
        self.in_thread: Callable[..., Awaitable[Any]] = threads.call
        self.notify_work: Callable[[], None] = partial(notify, agent.key)
        self.push = push
        self.output_filters = OutputFilters(agent.extensions, threads.call)
        self.hints = hints
        self.runs_turns = runs_turns
        self.queue = FairQueue()
        self.deadlines = Deadlines(store, options)
        self.remote_replies = RemoteReplies(store, self.hints, self.unavailable)
        self.closing = False
        self.may_have_orphans = False
        self.arriving: dict[str, ReplyHandle] = {}
        self.claimer = Claimer(
            capacity=self._capacity,
            claim=lambda count: store.claim_batch(agent.key, count),
            start=self._start_claimed,
            exhausted=self.queue.clear,
            failed=self.unavailable,
        )
        self._threads = threads
        self._direct_reply_timer = SharedTimer(options.direct_reply_timeout, TaskRunner.promote)
        self.blocking_timer = SharedTimer(options.blocking_timeout, ReplyWait.end)
        self._background: set[asyncio.Future[Any]] = set()
        self._runners: dict[str, TaskRunner] = {}
        self._active: set[TaskRunner] = set()
        self._abandoned: set[TaskRunner] = set()
        self._queued_deadlines: list[tuple[int, str]] = []
        self._idle: asyncio.Event | None = None

    @property
    def is_in_threads(self) -> bool:
        """True while a plain function runs in a thread."""
        return self._threads.is_busy

    # -- new messages --------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """The number of running turns."""
        return len(self._active)

    @property
    def held(self) -> int:
        """The number of tasks with a runner."""
        return len(self._runners)

    @property
    def has_capacity(self) -> bool:
        """True if a further turn may run."""
        return len(self._active) + self.claimer.reserved < self.options.max_running

    @property
    def _may_start(self) -> bool:
        """True if a new turn starts at once: there is capacity, and no queue."""
        queue = self.queue
        is_queued = queue.backlog or queue.enqueuing
        return self.runs_turns and not (is_queued or self.closing) and self.has_capacity

    def submit(
        self,
        request: Request,
        *,
        scope: Scope,
        context_id: str,
        logged: bool,
        holds: bool = False,
        receipts: Sequence[Receipt] = (),
        push: PushRecord | None = None,
        task_id: str = "",
    ) -> ReplyHandle:
        """Start or enqueue the turn of a message that has no task yet.

        ``logged`` makes its task durable before its function runs. ``holds``: the caller waits for
        the reply, so a task that its function creates and ends in time is appended once, at its
        end. If the process dies before that, the caller's connection breaks, and no other client
        knows the task. ``push`` is a webhook for the task's events, or for the direct reply.
        ``task_id`` is the task's id, if it was needed before. Raises ``OverloadedError`` without
        capacity.
        """
        if self.closing:
            raise shutting_down()
        is_direct = request.skill.replies == "message"
        if not self._may_start:
            if not is_direct:
                self._check_queue()
                return self._enqueue(request, scope, context_id, receipts, push, task_id)
            if not self.has_capacity:
                raise OverloadedError(
                    f"the agent runs {self.options.max_running} turns already", retry_after=1
                )
        runner = TaskRunner(self, context_id=context_id, scope=scope, task_id=task_id)
        runner.receipts = receipts
        if push is not None:
            runner.push = push
        elif holds and not (logged or receipts or task_id):
            runner.holds = True
        handle = ReplyHandle(runner)
        runner.waiters.current.append(handle)
        attempt = Attempt(runner, request)
        if logged:
            runner.create_task(request)
        self._active.add(runner)
        runner.start(attempt, None if is_direct else self._direct_reply_timer)
        return handle

    def _enqueue(
        self,
        request: Request,
        scope: Scope,
        context_id: str,
        receipts: Sequence[Receipt],
        push: PushRecord | None,
        task_id: str,
    ) -> ReplyHandle:
        """Append the task of a message without a lease, for any replica to claim."""
        at, skills = self.store.now(), len(self.skills)
        task_id = task_id or new_id(at)
        append = Append(
            task_id=task_id,
            events=first_events(request, task_id, context_id, skills=skills, at=at, queued=True),
            expected_seq=0,
            turn=1,
            scope=scope,
            context_id=context_id,
            base_url=request.base_url,
            turn_open=True,
            release=True,
            queue_key=self.queue.next_key(scope.tenant, request.caller.owner),
            receipts=first_turn_receipts(receipts, task_id),
            pushes=(push,) if push is not None else (),
        )
        handle = ReplyHandle(TaskReference(task_id))
        handle.turn = 1

        def appended(done: asyncio.Future[int]) -> None:
            self.queue.enqueuing -= 1
            error = StoreError("the append was cancelled") if done.cancelled() else done.exception()
            if isinstance(error, DuplicateReceipt):
                handle.mark_repeat()
                return
            if push is not None:  # also after an error: the task may have been stored
                self.push.watch(task_id, scope)
            if error is None:
                self._enqueued(task_id)
                handle.mark_logged()
                handle.delegate_to(self.remote_replies)
            else:
                log.error("a task could not be enqueued: %s", error)
                handle.refuse(self.unavailable(StoreError(str(error))))

        appending = self._keep_in_background(asyncio.ensure_future(self.store.append(append)))
        self.queue.enqueuing += 1
        appending.add_done_callback(appended)
        return handle

    def _enqueued(self, task_id: str) -> None:
        """Count a newly queued task, and wake the claimers."""
        self.queue.backlog += 1
        deadline = self.deadlines.of_task(task_id)
        if deadline is not None:
            heapq.heappush(self._queued_deadlines, (deadline, task_id))
        self.notify_work()

    # -- messages to existing tasks ------------------------------------------------------------

    def check_capacity(self) -> None:
        """Raise ``OverloadedError`` if a message to an existing task must be rejected."""
        self._check_open()
        self._check_queue()

    def _check_open(self) -> None:
        if self.closing:
            raise shutting_down()

    def _check_queue(self) -> None:
        if self.queue.length >= self.options.max_queued:
            raise OverloadedError(f"{self.queue.length} turns are waiting already", retry_after=1)

    def queue_key(self, record: TaskRecord, caller: Caller) -> int:
        """Return the queue key of a caller's message to a task; 0 if its turn is not queued."""
        if record.lease_owner or record.stored.task_id in self._runners or self._may_start:
            return 0
        return self.queue.next_key(record.scope.tenant, caller.owner)

    def expect(self, task_id: str, entry: str) -> ReplyHandle:
        """Return a handle for a message that will be appended to a task's log.

        Call ``deliver`` after the append; remove the handle from ``arriving`` if it fails.
        """
        handle = self.arriving[entry] = ReplyHandle(TaskReference(task_id), entry=entry)
        handle.is_logged = True
        return handle

    def deliver(self, handle: ReplyHandle) -> None:
        """Deliver an appended message to the task's runner, or start or queue a runner."""
        if self.arriving.pop(handle.entry, None) is None:
            return  # a turn has already received it
        runner = self._runners.get(handle.task_id)
        if runner is None and handle.found is not None and handle.found.wakes_at is not None:
            handle.delegate_to(
                self.remote_replies
            )  # it waits until the turn has woken up and ended
            self.notify_work()  # unless the turn has woken up just now
            return
        if runner is None and self._may_start:
            runner = self._start(handle.task_id)
        if runner is not None:
            runner.waiters.pending[handle.entry] = handle
            runner.wake()
        else:
            handle.delegate_to(self.remote_replies)
            self._enqueued(handle.task_id)

    # -- claimed and recovered tasks -----------------------------------------------------------

    def _capacity(self) -> int:
        """Return the number of tasks that may be claimed."""
        if self.closing or not self.runs_turns:
            return 0
        return self.options.max_running - len(self._active)

    async def update_backlog(self, count: int) -> None:
        """Set the number of unclaimed tasks in the store, and claim them."""
        if not count:
            if not self.queue.enqueuing:
                self.queue.clear()
            return
        self.queue.backlog = count
        self.queue.restart_at(await self.store.first_queued(self.agent))
        self.claimer.wake()

    def _start_claimed(self, tasks: Sequence[Claimed]) -> None:
        for task in tasks:
            if task.queue_key:
                self.queue.backlog = max(0, self.queue.backlog - 1)
                self.queue.advance(task.queue_key)
            runner = self._runners.get(task.task_id)
            if runner is not None:
                runner.successor_epoch = task.epoch  # the store fences this runner; another follows
            else:
                self._start(task.task_id, task.epoch)

    def _start(self, task_id: str, epoch: int = 0) -> TaskRunner:
        """Start a runner for a logged task; without an ``epoch`` it claims the task first."""
        runner = self._runners[task_id] = TaskRunner(self, task_id=task_id)
        runner.epoch = epoch
        self._active.add(runner)
        runner.start()
        if self.closing:
            runner.release()
        return runner

    async def wake_due(self, now: int, limit: int) -> int:
        """Enqueue up to ``limit`` sleeping tasks that are due. Return how many.

        Raises ``StoreError``.
        """
        due = await self.store.due_tasks(self.agent, now, limit)
        if not due:
            return 0
        keys = {
            task.task_id: self.queue.next_key(task.scope.tenant, task.scope.owner) for task in due
        }
        woken = await self.store.wake(keys, now)
        if woken:
            self.queue.backlog += woken
            self.notify_work()
        return woken

    def is_running(self, task_id: str) -> bool:
        """Return whether a runner has the task."""
        return task_id in self._runners

    def recover(self, task_id: str) -> None:
        """Start a runner for an orphan: a task that this replica holds without a runner.

        Without capacity the task is released.
        """
        if task_id in self._runners or self.closing:
            return
        keeps = self.runs_turns and self.has_capacity
        runner = self._start(task_id)
        self.push.watch(task_id)  # its webhooks may have no delivering replica either
        if not keeps:
            runner.release()

    async def expire_overdue(self) -> None:
        """Start idle tasks whose deadline has passed, so that they fail. Raises ``StoreError``.

        The replica that queued a task knows its deadline; the store knows the suspended tasks.
        """
        now = self.store.now()
        overdue = []
        while self._queued_deadlines and self._queued_deadlines[0][0] <= now:
            overdue.append(heapq.heappop(self._queued_deadlines)[1])
        try:
            positions = await self.store.positions(overdue) if overdue else ()
        except StoreError:
            self._queued_deadlines += [(now, task_id) for task_id in overdue]
            heapq.heapify(self._queued_deadlines)
            raise
        for position in positions:
            is_queued = not (position.ended or position.lease_owner)
            if is_queued and not self.closing and position.task_id not in self._runners:
                self._start(position.task_id)
        if self.options.task_timeout is not None and self.runs_turns:
            for task_id in await self.store.awaiting_input(self.agent, now, SUSPENDED_BATCH):
                deadline = self.deadlines.of_task(task_id)
                if deadline is None or deadline > now or task_id in self._runners:
                    continue
                if self.has_capacity and not self.closing:
                    self._start(task_id)

    # -- callbacks of runners ------------------------------------------------------------------

    def register(self, runner: TaskRunner) -> None:
        """Register a runner under its task."""
        self._runners[runner.task_id] = runner

    def remove(self, runner: TaskRunner) -> None:
        """Remove a runner that has ended, and use its capacity."""
        self._active.discard(runner)
        if runner.abandoned:
            self._abandoned.discard(runner)
        if runner.has_id and self._runners.get(task_id := runner.task_id) is runner:
            del self._runners[task_id]
            if runner.successor_epoch > runner.epoch:
                self._start(task_id, runner.successor_epoch)
        if self.closing:
            if self._idle is not None and not self._active:
                self._idle.set()
        elif self.claimer.is_wanted or self.queue.backlog:
            self.claimer.wake()

    def replace(self, runner: TaskRunner) -> None:
        """Start another runner for a task whose function does not end."""
        self._active.discard(runner)
        self._abandoned.add(runner)
        if runner.writer is None:
            return
        epoch = runner.successor_epoch if runner.successor_epoch > runner.epoch else 0
        successor = self._start(runner.task_id, epoch)
        successor.predecessor = runner.writer
        successor.waiters.inherit(runner.waiters)
        successor.cancel_requested = runner.cancel_requested

    def unavailable(self, error: StoreError) -> A2AError:
        """Return the caller's error for a failed store."""
        self.may_have_orphans = True
        return OverloadedError(
            "the server's task log does not work now; try again later", retry_after=5
        )

    # -- background operations, cancellation ---------------------------------------------------

    async def in_background(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a background operation, which completes even if the caller leaves."""
        return await asyncio.shield(self._keep_in_background(asyncio.create_task(work)))

    def _keep_in_background(self, work: asyncio.Future[T]) -> asyncio.Future[T]:
        self._background.add(work)
        work.add_done_callback(self._background_done)
        return work

    def _background_done(self, work: asyncio.Future[Any]) -> None:
        self._background.discard(work)
        if not work.cancelled():
            work.exception()  # retrieve it, as the caller may have left

    async def cancel(
        self, task_id: str, *, turn: int = 0, caller: Caller = ANONYMOUS, reason: str = ""
    ) -> None:
        """Log a cancellation, and wait for some time until the task has ended (E4).

        ``reason`` is set if the server cancels, not a caller. The runner of the task cancels it, on
        any replica; one is started if there is none. Raises ``TaskEnded``, ``UnknownTask``.
        """
        self._check_open()
        await self.in_background(self._request_cancel(task_id, turn, caller, reason))
        await self.remote_replies.wait_ended(task_id, self.options.cancel_grace + CANCEL_SECONDS)

    async def note_cancel(self, task_id: str, caller: Caller) -> None:
        """Log a cancellation, also during a shutdown. The task's process cancels the task.

        Raises ``StoreError``.
        """
        record = await self.store.load(task_id, history=0, artifacts=False)
        if record is not None:
            with contextlib.suppress(TaskEnded, UnknownTask):
                await self.in_background(self._request_cancel(task_id, record.turn, caller, ""))

    async def _request_cancel(self, task_id: str, turn: int, caller: Caller, reason: str) -> None:
        stored = record_of(kept(caller, self.retention.claims))
        event = CancelRequested(caller=stored, reason=reason)
        await self.store.append(
            Append(task_id=task_id, events=(event,), expected_seq=None, turn=turn)
        )
        runner = self._runners.get(task_id)
        if runner is not None:
            runner.cancel()
        elif not self.closing:
            self._start(task_id)  # regardless of capacity: no function will run
        else:
            self.notify_work()

    async def cancel_unanswered(self, task_id: str) -> None:
        """Cancel a task whose caller never answered."""
        with contextlib.suppress(TaskEnded, UnknownTask):
            await self.cancel(task_id, reason=UNANSWERED)

    # -- start and shutdown --------------------------------------------------------------------

    def open(self) -> None:
        """Accept messages."""
        self.closing = False
        self.remote_replies.open()

    def drain(self, grace: float) -> Coroutine[Any, Any, None]:
        """Reject new work; give turns ``grace`` seconds to end; release the remaining turns (E3).

        Callers that wait for turns of other replicas get the current task: at once if the store has
        no other replica, else after ``grace``.
        """
        self.closing = True
        return self._drain(grace)

    async def _drain(self, grace: float) -> None:
        until = asyncio.get_running_loop().time() + grace
        if not self.store.is_shared:
            self.remote_replies.close()
        try:
            await self.claimer.wait(max(grace, self.options.cancel_grace))
            await self._end_runners(grace, self.options.cancel_grace)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until + REPLY_SECONDS):
                    await self.remote_replies.wait_idle()
        except asyncio.CancelledError:
            await self._end_runners(0, min(LAST_SECONDS, self.options.cancel_grace))
            raise
        finally:
            self.remote_replies.close()
            self._threads.close()
            self._direct_reply_timer.close()
            self.blocking_timer.close()
            await self.claimer.stop()
            await end(self._background, grace=LAST_SECONDS)
            for runner in (*self._abandoned, *self._active):
                runner.cancel_main()

    async def _end_runners(self, grace: float, cancel_grace: float) -> None:
        for seconds in (grace, cancel_grace):
            if not self._active:
                return
            self._idle = asyncio.Event()
            try:
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
            except TimeoutError:
                for runner in list(self._active):
                    runner.release()
        if self._active:
            log.warning("%d turns did not end when they were stopped", len(self._active))
            stuck = [runner.release_stuck() for runner in self._active]
            for failure in await asyncio.gather(*stuck, return_exceptions=True):
                if failure is not None:
                    log.error("a turn could not be released", exc_info=failure)
