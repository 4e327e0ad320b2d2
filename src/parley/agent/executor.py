"""Runs the turns of one agent in this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from parley.agent.context import AgentContext
from parley.agent.lane import Lane
from parley.agent.moments import Moments
from parley.agent.outgoing import Outlet
from parley.agent.run import Request, Run
from parley.agent.senders import shutting_down
from parley.agent.skill import Skill
from parley.agent.threads import Threads
from parley.agent.ticket import Ticket
from parley.log.events import CancelRequested
from parley.log.hints import LocalHints
from parley.log.store import (
    Append,
    PushRecord,
    Receipt,
    Scope,
    StoreError,
    TaskEnded,
    TaskStore,
    UnknownTask,
)
from parley.model.errors import A2AError, OverloadedError
from parley.model.extensions import Extension

if TYPE_CHECKING:
    from parley.agent.push_delivery import PushDelivery

log = logging.getLogger("parley.agent")

T = TypeVar("T")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent's turns are run. Times are in seconds.

    ``moment``: how long a function may take to answer with a direct message.
    ``wait_ceiling``: how long a blocking send waits before it answers with the task as it stands.
    ``stream_until_terminal``: the stream of a message stays open when its task asks for input.
    ``cancel_grace``: how long a function may take to end once it is told to.
    ``on_crash``: whether a turn that a dead process left open is run again or failed.
    ``max_attempts``: how often a turn is attempted in all.
    ``max_running``: how many turns run at once; ``max_queued``: how many more may wait.
    """

    moment: float = 1.0
    wait_ceiling: float = 300.0
    stream_until_terminal: bool = False
    cancel_grace: float = 5.0
    on_crash: Literal["rerun", "fail"] = "rerun"
    max_attempts: int = 5
    max_running: int = 1000
    max_queued: int = 10_000
    keeps_history: bool = False

    def __post_init__(self) -> None:
        for name in ("moment", "cancel_grace"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is a number of seconds, 0 or more")
        if self.wait_ceiling <= 0:
            raise ValueError("wait_ceiling is a number of seconds above 0")
        for name in ("max_attempts", "max_running"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is 1 or more")
        if self.max_queued < 0:
            raise ValueError("max_queued is 0 or more")
        if self.on_crash not in ("rerun", "fail"):
            raise ValueError(f"on_crash is 'rerun' or 'fail', not {self.on_crash!r}")


class _Named(msgspec.Struct, frozen=True):
    task_id: str


class AgentExecutor:
    """Owns every lane of one agent: starts, queues, wakes, cancels and recovers them."""

    def __init__(
        self,
        store: TaskStore,
        *,
        skills: Mapping[str, Skill],
        default_skill: Skill,
        options: Options,
        threads: Threads,
        push: PushDelivery,
        extensions: Iterable[Extension] = (),
        hints: LocalHints | None = None,
    ) -> None:
        self.store = store
        self.skills = skills
        self.default_skill = default_skill
        self.options = options
        self.push = push
        self.outlet = Outlet(extensions)
        self.hints = hints or LocalHints()
        self.closing = False
        self.troubled = False
        self._threads = threads
        self._moments = Moments(options.moment)
        self.expected: dict[str, Ticket] = {}
        self._errands: set[asyncio.Task[Any]] = set()
        self._lanes: dict[str, Lane] = {}
        self._active: set[Lane] = set()
        self._queue: deque[tuple[Lane, Callable[[], Coroutine[Any, Any, None]]]] = deque()
        self._backlog: deque[str] = deque()
        self._empty: asyncio.Event | None = None

    # -- new work ------------------------------------------------------------------------------

    def begin(
        self,
        request: Request,
        *,
        scope: Scope,
        context_id: str,
        logged: bool,
        receipts: Sequence[Receipt] = (),
        push: PushRecord | None = None,
    ) -> Ticket:
        """Start the turn of a message that has no task yet.

        ``logged`` makes its task durable before its function runs. ``push`` names a webhook, which
        is told of the task from its first event on, or of the direct reply.
        Raises ``OverloadedError`` when there is no room.
        """
        self._refuse_when_closing()
        lane = Lane(self, context_id=context_id, scope=scope)
        lane.receipts = receipts
        if push is not None:
            lane.push = push
        ticket = Ticket(lane)
        lane.senders.present.append(ticket)
        run = Run(lane, request)
        has_room = len(self._active) < self.options.max_running
        if not has_room:
            self._refuse_when_full()
            if request.skill.replies == "message":
                raise OverloadedError(
                    f"the agent runs {self.options.max_running} turns already", retry_after=1
                )
        if logged or not has_room:
            lane.log(request)
        moments = None if request.skill.replies == "message" else self._moments
        if has_room:
            self._active.add(lane)
            lane.start(lane.first(run, moments=moments))
        else:
            self._queue.append((lane, lambda: lane.first(run, moments=moments)))
        return ticket

    def expect(self, task_id: str, entry: str) -> Ticket:
        """Return the ticket of a message that is on its way into the log of a task.

        ``deliver`` follows when it is there; take the ticket out of ``expected`` when it is not.
        """
        ticket = self.expected[entry] = Ticket(_Named(task_id), entry=entry)
        ticket.is_logged = True
        return ticket

    def deliver(self, ticket: Ticket, *, scope: Scope, context_id: str) -> None:
        """Say that an expected message is in the log, and see that a turn takes it."""
        if self.expected.pop(ticket.entry, None) is None:
            return  # a turn was quicker
        lane = self._lanes.get(ticket.task_id)
        if lane is not None:
            lane.senders.waiting[ticket.entry] = ticket
            lane.wake()
            return
        lane = Lane(self, task_id=ticket.task_id, context_id=context_id, scope=scope)
        self._lanes[ticket.task_id] = lane
        lane.senders.waiting[ticket.entry] = ticket
        self._start(lane, lane.more)

    def _refuse_when_closing(self) -> None:
        if self.closing:
            raise shutting_down()

    def _refuse_when_full(self) -> None:
        if len(self._queue) >= self.options.max_queued:
            raise OverloadedError(f"{self.options.max_queued} turns wait already", retry_after=1)

    def check_room(self) -> None:
        """Raise ``OverloadedError`` when a message to an existing task has no room."""
        self._refuse_when_closing()
        self._refuse_when_full()

    def _start(self, lane: Lane, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if len(self._active) < self.options.max_running:
            self._active.add(lane)
            lane.start(main())
        else:
            self._queue.append((lane, main))

    # -- what lanes tell -----------------------------------------------------------------------

    def adopt(self, lane: Lane) -> None:
        """Know a lane by its task, from now on."""
        self._lanes[lane.task_id] = lane

    def left(self, lane: Lane) -> None:
        """Forget a lane that has nothing more to do, and start what waited for its place."""
        self._active.discard(lane)
        if lane.is_named and self._lanes.get(lane.task_id) is lane:
            del self._lanes[lane.task_id]
        if self.closing:
            if self._empty is not None and not self._active:
                self._empty.set()
            return
        if self._queue or self._backlog:
            self._fill()

    def _fill(self) -> None:
        while self._queue and len(self._active) < self.options.max_running:
            lane, main = self._queue.popleft()
            self._active.add(lane)
            lane.start(main())
        while self._backlog and len(self._active) < self.options.max_running:
            self._recover(self._backlog.popleft())

    def replace(self, lane: Lane) -> None:
        """Put a fresh lane in the place of one whose function does not end."""
        self._active.discard(lane)
        fresh = Lane(self, task_id=lane.task_id, context_id=lane.context_id, scope=lane.scope)
        fresh.senders.inherit(lane.senders)
        fresh.ended, lane.ended = lane.ended, None
        fresh.cancel_asked = lane.cancel_asked
        self._lanes[lane.task_id] = fresh
        self._active.add(fresh)
        fresh.start(fresh.more())

    def unavailable(self, error: StoreError) -> A2AError:
        """Return what a sender is told when the log could not be written."""
        self.troubled = True
        return OverloadedError(
            "the server's task log does not work now; try again later", retry_after=5
        )

    # -- cancel, recover, drain ----------------------------------------------------------------

    async def errand(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something for a caller that is to be done even if the caller goes away meanwhile."""
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, errand: asyncio.Task[Any]) -> None:
        self._errands.discard(errand)
        if not errand.cancelled():
            errand.exception()  # the caller may be gone: then nobody else looks at it

    async def cancel(self, task_id: str, *, scope: Scope, context_id: str, turn: int = 0) -> None:
        """Log a cancellation and see it through: return when the task's lane has ended (E4).

        Raises ``TaskEnded``, ``UnknownTask``.
        """
        self._refuse_when_closing()
        await self.errand(self._cancel(task_id, scope, context_id, turn))

    async def _cancel(self, task_id: str, scope: Scope, context_id: str, turn: int) -> None:
        await self.store.append(
            Append(task_id=task_id, events=(CancelRequested(),), expected_seq=None, turn=turn)
        )
        lane = self._lanes.get(task_id)
        if lane is None:
            lane = Lane(self, task_id=task_id, context_id=context_id, scope=scope)
            self._lanes[task_id] = lane
            self._active.add(lane)
            lane.start(lane.more())
        else:
            queued = next((item for item in self._queue if item[0] is lane), None)
            if queued is not None:
                self._queue.remove(queued)
                self._active.add(lane)
                lane.start(lane.more())
        ended = lane.ended = lane.ended or asyncio.Event()
        lane.cancel()
        await ended.wait()

    async def give_up(self, task_id: str) -> None:
        """Cancel a task whose caller never came back."""
        with contextlib.suppress(TaskEnded, UnknownTask):
            await self.cancel(task_id, scope=Scope(agent=""), context_id="")

    async def recover(self, agent: str) -> int:
        """Take up every task that a dead process left open; return how many there are."""
        tasks = [t for t in await self.store.unfinished(agent) if t not in self._lanes]
        self._backlog.extend(tasks)
        self._fill()
        self.troubled = False
        return len(tasks)

    def _recover(self, task_id: str) -> None:
        if task_id in self._lanes:
            return
        lane = Lane(self, task_id=task_id, context_id="", scope=Scope(agent=""))
        self._lanes[task_id] = lane
        self._active.add(lane)
        lane.start(lane.more())

    async def drain(self, grace: float) -> None:
        """Accept nothing more; give turns ``grace`` seconds to end; release the rest (E3)."""
        self.closing = True
        self._backlog.clear()
        try:
            await self._drain(grace)
        finally:
            self._threads.close()
            self._moments.close()

    async def _drain(self, grace: float) -> None:
        queued, self._queue = self._queue, deque()
        for lane, _ in queued:
            await lane.set_aside()
        for seconds in (grace, self.options.cancel_grace):
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

    @property
    def running(self) -> int:
        """How many turns run now."""
        return len(self._active)

    # -- what runs need ------------------------------------------------------------------------

    def context(self, lane: Lane) -> AgentContext:
        """Return what the agent remembers of the lane's context."""
        return AgentContext(
            self.store, lane.scope, lane.context_id, keeps_history=self.options.keeps_history
        )

    async def in_thread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a plain function in one of the agent's threads."""
        return await self._threads.call(function, *args, **kwargs)
