"""Runs the turns of one agent in this process."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from parley.agent.context import AgentContext, ValueName
from parley.engine.caller import kept, record_of
from parley.engine.options import Options
from parley.engine.queue.claimer import Claimer
from parley.engine.queue.deadlines import Deadlines
from parley.engine.queue.enqueue import enqueue
from parley.engine.queue.fair_queue import FairQueue
from parley.engine.queue.shared_timer import SharedTimer
from parley.engine.replies.remote_replies import RemoteReplies
from parley.engine.replies.reply_handle import Named, ReplyHandle
from parley.engine.replies.waiters import shutting_down
from parley.engine.skill import Skill
from parley.engine.thread_pool import ThreadPool
from parley.engine.turn import release
from parley.engine.turn.attempt import Attempt, Request
from parley.engine.turn.output_filter import Outlet
from parley.engine.turn.task_runner import TaskRunner
from parley.model.errors import A2AError, OverloadedError
from parley.model.extensions import Extension
from parley.model.service import ANONYMOUS, Caller
from parley.store.bus.subscriptions import LocalHints
from parley.store.ending import end
from parley.store.events import CancelRequested
from parley.store.task_store import (
    Append,
    Claimed,
    PushRecord,
    Receipt,
    Scope,
    StoreError,
    TaskEnded,
    TaskRecord,
    TaskStore,
    UnknownTask,
)

if TYPE_CHECKING:
    from parley.push.dispatcher import PushDispatcher

log = logging.getLogger("parley.agent")

T = TypeVar("T")

PARKED_BATCH = 10_000
"""How many tasks that wait for their callers are looked through for those that had their time."""

CANCEL_SECONDS = 20.0
"""How long a caller waits for a cancellation, besides the grace that the function has: longer than
it takes to find out that a replica is dead.
"""

REPLY_SECONDS = 0.7
"""How long senders wait for turns that a server let go when it ended, for another to finish them:
the server gives their requests a second.
"""


HURRY_SECONDS = 1.0
"""How long turns have to let go of their tasks when nobody waits for the end any longer, and how
long what callers asked for has to be done.
"""


class AgentExecutor:
    """Owns every lane of one agent in this process: starts, wakes, cancels and ends them.

    There is no queue here: a message for which there is no room is written down as a task that
    nobody holds, and whoever has room adopts it, as it adopts what a dead replica left. ``works``
    is false for an executor that takes messages in and runs no turns, but those that cannot have a
    task. ``tell`` is called with the agent's key when there is something to adopt.
    """

    def __init__(
        self,
        store: TaskStore,
        *,
        agent: str,
        skills: Mapping[str, Skill],
        default_skill: Skill,
        options: Options,
        threads: ThreadPool,
        push: PushDispatcher,
        tell: Callable[[str], None],
        extensions: Iterable[Extension] = (),
        hints: LocalHints | None = None,
        works: bool = True,
    ) -> None:
        self.store = store
        self.agent = agent
        self.skills = skills
        self.default_skill = default_skill
        self.options = options
        self.push = push
        self.outlet = Outlet(extensions, self.in_thread)
        self.hints = hints or LocalHints()
        self.works = works
        self.line = FairQueue()
        self.deadlines = Deadlines(store, options)
        self.elsewhere = RemoteReplies(store, self.hints, self.unavailable)
        self.closing = False
        self.troubled = False
        self.expected: dict[str, ReplyHandle] = {}
        self._tell = tell
        self._threads = threads
        self._moments = SharedTimer(options.direct_reply_timeout)
        self._errands: set[asyncio.Future[Any]] = set()
        self._lanes: dict[str, TaskRunner] = {}
        self._active: set[TaskRunner] = set()
        self._abandoned: set[TaskRunner] = set()
        self._updating: WeakValueDictionary[ValueName, asyncio.Lock] = WeakValueDictionary()
        self.adoption = Claimer(self)
        self._at_rest: list[tuple[int, str]] = []
        self._empty: asyncio.Event | None = None

    # -- new work ------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """How many turns run now."""
        return len(self._active)

    @property
    def has_room(self) -> bool:
        """Whether a further turn may run."""
        return len(self._active) + self.adoption.reserved < self.options.max_running

    def begin(
        self,
        request: Request,
        *,
        scope: Scope,
        context_id: str,
        logged: bool,
        receipts: Sequence[Receipt] = (),
        push: PushRecord | None = None,
    ) -> ReplyHandle:
        """Start the turn of a message that has no task yet, or put it in line.

        ``logged`` makes its task durable before its function runs. ``push`` names a webhook, which
        is told of the task from its first event on, or of the direct reply.
        Raises ``OverloadedError`` when there is no room.
        """
        self._refuse_when_closing()
        is_direct = request.skill.replies == "message"
        if not self._may_start:
            if not is_direct:
                self._refuse_when_full()
                return enqueue(self, request, scope, context_id, receipts, push)
            if not self.has_room:
                raise OverloadedError(
                    f"the agent runs {self.options.max_running} turns already", retry_after=1
                )
        lane = TaskRunner(self, context_id=context_id, scope=scope)
        lane.receipts = receipts
        if push is not None:
            lane.push = push
        ticket = ReplyHandle(lane)
        lane.senders.present.append(ticket)
        run = Attempt(lane, request)
        if logged:
            lane.log(request)
        self._active.add(lane)
        lane.start(lane.first(run, moments=None if is_direct else self._moments))
        return ticket

    def joined(self, task_id: str) -> None:
        """Note that a task stands in line now, and tell everyone."""
        self.line.count += 1
        due = self.deadlines.of_task(task_id)
        if due is not None:
            heapq.heappush(self._at_rest, (due, task_id))
        self.announce()

    def announce(self) -> None:
        """Say that there is something to adopt, here and to other replicas."""
        self._tell(self.agent)

    def expect(self, task_id: str, entry: str) -> ReplyHandle:
        """Return the ticket of a message that is on its way into the log of a task.

        ``deliver`` follows when it is there; take the ticket out of ``expected`` when it is not.
        """
        ticket = self.expected[entry] = ReplyHandle(Named(task_id), entry=entry)
        ticket.is_logged = True
        return ticket

    def place_for(self, record: TaskRecord) -> int:
        """Return where a message to a task stands in line, if it does; 0 if it does not."""
        if record.lease_owner or record.task.id in self._lanes or self._may_start:
            return 0
        return self.line.place_for(record.scope)

    @property
    def _may_start(self) -> bool:
        """Whether a further turn starts here at once: there is room for it, and no line."""
        line = self.line
        return self.works and not (line.count or line.joining or self.closing) and self.has_room

    def deliver(self, ticket: ReplyHandle) -> None:
        """Say that an expected message is in the log, and see that a turn takes it."""
        if self.expected.pop(ticket.entry, None) is None:
            return  # a turn was quicker
        lane = self._lanes.get(ticket.task_id)
        if lane is None and self._may_start:
            lane = self._start(ticket.task_id)
        if lane is not None:
            lane.senders.waiting[ticket.entry] = ticket
            lane.wake()
        else:
            ticket.hand_over(self.elsewhere)
            self.joined(ticket.task_id)

    def _refuse_when_closing(self) -> None:
        if self.closing:
            raise shutting_down()

    def _refuse_when_full(self) -> None:
        if self.line.length >= self.options.max_queued:
            raise OverloadedError(f"{self.line.length} turns wait already", retry_after=1)

    def check_room(self) -> None:
        """Raise ``OverloadedError`` when a message to an existing task has no room."""
        self._refuse_when_closing()
        self._refuse_when_full()

    def _start(self, task_id: str, epoch: int = 0) -> TaskRunner:
        """Start a lane for a task that is in the log, which it claims if it has no epoch."""
        lane = self._lanes[task_id] = TaskRunner(self, task_id=task_id)
        lane.epoch = epoch
        self._active.add(lane)
        lane.start(lane.more())
        if self.closing:
            lane.release()
        return lane

    # -- what nobody holds ---------------------------------------------------------------------

    async def look(self, count: int) -> None:
        """Learn how many of the agent's tasks are to be adopted, as the store has it."""
        if not count:
            if not self.line.joining:
                self.line.is_empty()
            return
        self.line.count = count
        self.line.begins_at(await self.store.first_queued(self.agent))
        self.adoption.go_on()

    def adopted(self, tasks: Sequence[Claimed]) -> None:
        """Work on tasks that were adopted."""
        for task in tasks:
            if task.place:
                self.line.count = max(0, self.line.count - 1)
                self.line.served(task.place)
            lane = self._lanes.get(task.task_id)
            if lane is not None:
                lane.successor = task.epoch  # it finds itself fenced, and another follows it
            else:
                self._start(task.task_id, task.epoch)

    def resume(self, task_id: str) -> None:
        """Take up a task at rest, if there is room."""
        if task_id not in self._lanes and self.works and self.has_room and not self.closing:
            self._start(task_id)

    def take_up(self, task_id: str) -> None:
        """Go on with a task that is held here and that no lane knows of; where there is no room for
        it, let it go, for whoever has. The attempt that is open did not end by a fault of its own,
        so it does not count.
        """
        if task_id in self._lanes or self.closing:
            return
        is_ours = self.works and self.has_room
        lane = self._start(task_id)
        lane.blameless = True
        self.push.watch(task_id)  # its webhooks may be as forgotten as it was
        if not is_ours:
            lane.release()

    def knows(self, task_id: str) -> bool:
        """Whether there is a lane for a task."""
        return task_id in self._lanes

    async def end_late(self) -> None:
        """Take up tasks at rest that have had their time, so that they end. Raises ``StoreError``.

        Those that stand in line are known to the replica that put them there, those that wait for
        their callers to the store.
        """
        now = self.store.now()
        late = []
        while self._at_rest and self._at_rest[0][0] <= now:
            late.append(heapq.heappop(self._at_rest)[1])
        try:
            places = await self.store.positions(late) if late else ()
        except StoreError:
            self._at_rest += [(now, task_id) for task_id in late]
            heapq.heapify(self._at_rest)
            raise
        for place in places:
            in_line = not (place.ended or place.lease_owner)
            if in_line and not self.closing and place.task_id not in self._lanes:
                self._start(place.task_id)
        if self.options.task_timeout is not None and self.works:
            for task_id in await self.store.parked(self.agent, now, PARKED_BATCH):
                due = self.deadlines.of_task(task_id)
                if due is not None and due <= now:
                    self.resume(task_id)

    # -- what lanes tell -----------------------------------------------------------------------

    def know(self, lane: TaskRunner) -> None:
        """Know a lane by its task, from now on."""
        self._lanes[lane.task_id] = lane

    def left(self, lane: TaskRunner) -> None:
        """Forget a lane that has nothing more to do, and start what waited for its place."""
        self._active.discard(lane)
        self._abandoned.discard(lane)
        if lane.is_named and self._lanes.get(lane.task_id) is lane:
            del self._lanes[lane.task_id]
            if lane.successor > lane.epoch:
                self._start(lane.task_id, lane.successor)
        if self.closing:
            if self._empty is not None and not self._active:
                self._empty.set()
        elif self.adoption.is_wanted or self.line.count:
            self.adoption.go_on()

    def replace(self, lane: TaskRunner) -> None:
        """Put a fresh lane in the place of one whose function does not end."""
        self._active.discard(lane)
        self._abandoned.add(lane)
        if lane.writer is None:
            return
        fresh = self._start(lane.task_id, lane.successor if lane.successor > lane.epoch else 0)
        fresh.before = lane.writer
        fresh.senders.inherit(lane.senders)
        fresh.cancel_asked = lane.cancel_asked

    def unavailable(self, error: StoreError) -> A2AError:
        """Return what a sender is told when the log could not be written."""
        self.troubled = True
        return OverloadedError(
            "the server's task log does not work now; try again later", retry_after=5
        )

    # -- cancelling ----------------------------------------------------------------------------

    async def errand(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something for a caller that is to be done even if the caller goes away meanwhile."""
        return await asyncio.shield(self.keep_going(asyncio.create_task(work)))

    def keep_going(self, work: asyncio.Future[T]) -> asyncio.Future[T]:
        """Hold on to something that is to be done, whoever waits for it."""
        self._errands.add(work)
        work.add_done_callback(self._done)
        return work

    def _done(self, errand: asyncio.Future[Any]) -> None:
        self._errands.discard(errand)
        if not errand.cancelled():
            errand.exception()  # the caller may be gone: then nobody else looks at it

    async def cancel(self, task_id: str, *, turn: int = 0, caller: Caller = ANONYMOUS) -> None:
        """Log a cancellation, and wait until the task has ended, for a while (E4).

        ``caller`` is who wants it, if anybody does. Whoever holds the task sees it through, and
        this executor when nobody does.
        Raises ``TaskEnded``, ``UnknownTask``.
        """
        self._refuse_when_closing()
        await self.errand(self._ask_to_cancel(task_id, turn, caller))
        await self.elsewhere.until_ended(task_id, self.options.cancel_grace + CANCEL_SECONDS)

    async def _ask_to_cancel(self, task_id: str, turn: int, caller: Caller) -> None:
        event = CancelRequested(caller=record_of(kept(caller, self.options.keep_claims)))
        await self.store.append(
            Append(task_id=task_id, events=(event,), expected_seq=None, turn=turn)
        )
        lane = self._lanes.get(task_id)
        if lane is not None:
            lane.cancel()
        elif not self.closing:
            self._start(task_id)  # which takes no room: no function is run
        else:
            self._tell(self.agent)

    async def give_up(self, task_id: str) -> None:
        """Cancel a task whose caller never came back."""
        with contextlib.suppress(TaskEnded, UnknownTask):
            await self.cancel(task_id)

    # -- beginning and end ---------------------------------------------------------------------

    def open(self) -> None:
        """Take messages."""
        self.closing = False
        self.elsewhere.open()

    def drain(self, grace: float) -> Coroutine[Any, Any, None]:
        """Accept nothing more from now on; give turns ``grace`` seconds to end; release the rest.

        Those who wait for turns that are not run here get the task as it stands: at once when the
        store has no other replica to run them, else when the time is over (E3).
        """
        self.closing = True
        return self._end(grace)

    async def _end(self, grace: float) -> None:
        until = asyncio.get_running_loop().time() + grace
        if not self.store.is_shared:
            self.elsewhere.close()
        try:
            await self.adoption.over(max(grace, self.options.cancel_grace))
            await self._let_end(grace, self.options.cancel_grace)
            await self._wait_elsewhere(until + REPLY_SECONDS)
        except asyncio.CancelledError:
            await self._let_end(0, min(HURRY_SECONDS, self.options.cancel_grace))
            raise
        finally:
            self.elsewhere.close()
            self._threads.close()
            self._moments.close()
            await self.adoption.end()
            await end(self._errands, grace=HURRY_SECONDS)
            for lane in (*self._abandoned, *self._active):
                release.give_up(lane)

    async def _let_end(self, grace: float, cancel_grace: float) -> None:
        for seconds in (grace, cancel_grace):
            if not self._active:
                return
            self._empty = asyncio.Event()
            try:
                async with asyncio.timeout(seconds):
                    await self._empty.wait()
            except TimeoutError:
                for lane in list(self._active):
                    lane.release()
        if self._active:
            log.warning("%d turns did not end when told to", len(self._active))
            stuck = [lane.release_without_function() for lane in self._active]
            for failure in await asyncio.gather(*stuck, return_exceptions=True):
                if failure is not None:
                    log.error("a turn could not be let go", exc_info=failure)

    async def _wait_elsewhere(self, until: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self.elsewhere.until_idle()

    # -- what runs need ------------------------------------------------------------------------

    def context(self, lane: TaskRunner) -> AgentContext:
        """Return what the agent remembers of the lane's context."""
        return AgentContext(
            self.store,
            lane.scope,
            lane.context_id,
            keep_history=self.options.keep_history,
            updating=self._updating,
        )

    async def in_thread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a plain function in one of the agent's threads."""
        return await self._threads.call(function, *args, **kwargs)
