"""Handles what was verified: admitted by the inbox, queued, given to the handler, remembered."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, Protocol
from uuid import uuid4

from parley.model.concurrency import end
from parley.model.tasks import Task
from parley.push.receiving.request import (
    NotificationRefused,
    PushNotification,
    ReceiverLimits,
    number_of,
)
from parley.store.inbox.inbox import Inbox, InboxAnswer, InboxFailed

# -- lanes ------------------------------------------------------------------------------------


class Arrival:
    """A notification that waits or is handled.

    ``id`` and ``lane`` are the inbox's: of one length, and others for each sender.
    ``accepted`` says whether the inbox lets it be handled; ``done`` ends with the handler, with its
    error if it raised one.
    """

    __slots__ = ("accepted", "done", "id", "lane", "notification", "number", "prefix", "size")

    def __init__(
        self, notification: PushNotification, lane: str, size: int, *, sender: str = ""
    ) -> None:
        loop = asyncio.get_running_loop()
        self.notification = notification
        self.id = _key(sender, notification.id) if notification.id else ""
        self.lane = _key(sender, lane)
        self.size = size
        self.prefix, self.number = number_of(notification.id)
        self.accepted: asyncio.Future[bool] = loop.create_future()
        self.done: asyncio.Future[BaseException | None] = loop.create_future()


def _key(sender: str, name: str) -> str:
    text = f"{sender}\x1f{name}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


class Lane:
    """The notifications of one task. ``lock`` orders the questions to the inbox."""

    __slots__ = ("arrivals", "current", "is_scheduled", "lock")

    def __init__(self) -> None:
        self.arrivals: deque[Arrival] = deque()
        self.current: Arrival | None = None
        self.is_scheduled = False
        self.lock = asyncio.Lock()

    def add(self, arrival: Arrival) -> None:
        """Put a notification in its place."""
        index = len(self.arrivals)
        if arrival.number is not None:
            for at, other in enumerate(self.arrivals):
                if other.prefix == arrival.prefix and (other.number or 0) > arrival.number:
                    index = at
                    break
        self.arrivals.insert(index, arrival)

    def has_others(self, arrival: Arrival) -> bool:
        """Return whether there are other notifications that are not refused."""
        return any(
            each is not arrival and not (each.accepted.done() and not each.accepted.result())
            for each in (*self.arrivals, *([self.current] if self.current else ()))
        )


class Lanes:
    """Runs ``handle`` for notifications; ``concurrency`` of them at once, each of another lane."""

    def __init__(self, handle: Callable[[Arrival], Awaitable[None]], concurrency: int) -> None:
        self._handle = handle
        self._concurrency = concurrency
        self._lanes: dict[str, Lane] = {}
        self._ready: deque[str] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopped = False
        self.count = 0
        self.bytes = 0

    @property
    def names(self) -> list[str]:
        """The lanes that have notifications."""
        return list(self._lanes)

    def lane(self, name: str) -> Lane:
        """Return a lane that has notifications."""
        return self._lanes[name]

    def put(self, arrival: Arrival) -> Lane:
        """Queue a notification. It is handled once ``accepted`` is true."""
        lane = self._lanes.get(arrival.lane)
        if lane is None:
            lane = self._lanes[arrival.lane] = Lane()
        lane.add(arrival)
        self.count += 1
        self.bytes += arrival.size
        self._idle.clear()
        self._schedule(arrival.lane, lane)
        return lane

    async def drain(self) -> None:
        """Wait until nothing is queued."""
        await self._idle.wait()

    async def stop(self) -> int:
        """Cancel what runs, drop what waits, and return how many notifications that were."""
        left, self._is_stopped = self.count, True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes.values():
            for arrival in lane.arrivals:
                arrival.done.cancel()
        self._lanes.clear()
        self._ready.clear()
        self.count = self.bytes = 0
        self._idle.set()
        return left

    def _schedule(self, name: str, lane: Lane) -> None:
        if not lane.is_scheduled and lane.arrivals:
            lane.is_scheduled = True
            self._ready.append(name)
        while self._ready and len(self._tasks) < self._concurrency and not self._is_stopped:
            following = self._ready.popleft()
            task = asyncio.create_task(self._run(following), name="parley-push-receiver")
            self._tasks.add(task)

    async def _run(self, name: str) -> None:
        """Handle the next notification of a lane, then let another lane run."""
        lane = self._lanes[name]
        arrival = lane.current = lane.arrivals.popleft()
        try:
            if await arrival.accepted:
                await self._handle(arrival)
        finally:
            if not arrival.done.done():
                arrival.done.cancel()
            lane.current = None
            lane.is_scheduled = False
            self.count -= 1
            self.bytes -= arrival.size
            current = asyncio.current_task()
            if current is not None:
                self._tasks.discard(current)
            if not lane.arrivals and self._lanes.get(name) is lane:
                del self._lanes[name]
            if not self._lanes:
                self._idle.set()
            self._schedule(name, lane)


# -- handling ---------------------------------------------------------------------------------

log = logging.getLogger("parley.push.receiver")

BUSY_SECONDS = 1
FULL_SECONDS = 2
FAILED_SECONDS = 5
"""The ``Retry-After`` of a refusal for now: the task is at another replica, the queue is
full, the inbox fails.
"""

Handler = Callable[[PushNotification], Awaitable[None] | None]


class TaskSource(Protocol):
    """Fetches tasks: a ``RemoteAgent`` is one."""

    async def get(self, task_id: str) -> Task:
        """Return a task."""
        ...


AgentOpener = Callable[[], AbstractAsyncContextManager[TaskSource]]


class NotificationHandling:
    """The queue of a receiver, its inbox, its handler, and the agent that it asks for tasks."""

    def __init__(
        self,
        handler: Handler,
        *,
        inbox: Inbox,
        open_agent: AgentOpener | None,
        acknowledges_first: bool,
        limits: ReceiverLimits,
    ) -> None:
        self._handler = handler
        self._is_async = _is_async(handler)
        self._open_agent = open_agent
        self._inbox = inbox
        self._acknowledges_first = acknowledges_first
        self._limits = limits
        self._holder = uuid4().hex
        self._lanes = Lanes(self._handle, limits.concurrency)
        self._opening: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._arrivals: dict[str, Arrival] = {}
        self._admitting: set[asyncio.Task[InboxAnswer | None]] = set()
        self._agent: TaskSource | None = None
        self._agent_lock = asyncio.Lock()
        self._agent_stack = AsyncExitStack()

    @property
    def bytes(self) -> int:
        """The bytes that are queued."""
        return self._lanes.bytes

    async def start(self) -> None:
        """Open the inbox once. Raises ``InboxFailed``, and the next call tries again."""
        if self._opening is None or (
            self._opening.done()
            and (self._opening.cancelled() or self._opening.exception() is not None)
        ):
            self._opening = asyncio.create_task(self._inbox.open(), name="parley-inbox-open")
        await asyncio.shield(self._opening)
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renew(), name="parley-inbox-renew")

    async def aclose(self) -> None:
        """Wait for the queue for ``limits.drain`` seconds, and disconnect."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.drain):
                await self._lanes.drain()
        names = self._lanes.names
        if left := await self._lanes.stop():
            log.warning("the receiver stops with %d notifications that were not handled", left)
        if self._admitting:  # else their lanes would be held after this
            await asyncio.wait(self._admitting)
        self._arrivals.clear()
        if self._opening is not None:
            with suppress(InboxFailed):  # else their leases end by themselves
                for name in names:
                    await self._inbox.release(name, self._holder)
        await end([each for each in (self._renewal, self._opening) if each is not None])
        if self._opening is not None:
            with suppress(InboxFailed):
                await self._inbox.close()
        self._renewal = self._opening = self._agent = None
        self._lanes = Lanes(self._handle, self._limits.concurrency)  # for another event loop
        self._agent_lock = asyncio.Lock()
        await self._agent_stack.aclose()

    async def _renew(self) -> None:
        """Hold the lanes that have notifications."""
        while True:
            await asyncio.sleep(self._limits.lease / 3)
            lanes = self._lanes.names
            if not lanes:
                continue
            try:
                await self._inbox.renew(lanes, self._holder, self._limits.lease)
            except InboxFailed as error:
                log.error("%s", error)

    def check_room(self) -> None:
        """Raise ``NotificationRefused`` while the queue is full."""
        if self._lanes.count >= self._limits.queue:
            raise NotificationRefused(503, "the queue is full", retry_after=FULL_SECONDS)

    async def take(self, arrival: Arrival) -> int:
        """Queue a notification unless it is known, and return the status of the answer."""
        id = arrival.id
        known = self._arrivals.get(id) if id else None
        if known is not None:  # it came again while it waits or is handled
            if not await asyncio.shield(known.accepted):
                raise _busy()
            return await self._answer(known)
        self.check_room()
        if id:
            self._arrivals[id] = arrival
        lane = self._lanes.put(arrival)
        # A sender that hangs up must not leave a notification that is admitted and never handled.
        admitting = asyncio.create_task(self._admit(arrival, lane), name="parley-inbox-admit")
        self._admitting.add(admitting)
        admitting.add_done_callback(self._admitting.discard)
        admission = await asyncio.shield(admitting)
        if admission is None:
            raise NotificationRefused(503, "the inbox fails", retry_after=FAILED_SECONDS)
        if admission is InboxAnswer.BUSY:
            raise _busy()
        if admission is InboxAnswer.HANDLED:
            return 200
        return await self._answer(arrival)

    async def _admit(self, arrival: Arrival, lane: Lane) -> InboxAnswer | None:
        """Ask the inbox, one notification of a lane after the other; ``None`` if it fails."""
        id, admission = arrival.id, None
        try:
            async with lane.lock:
                admission = await self._inbox.admit(
                    id, arrival.lane, self._holder, self._limits.lease
                )
                if admission is InboxAnswer.HANDLED and not lane.has_others(arrival):
                    await self._inbox.release(arrival.lane, self._holder)
            return admission
        except InboxFailed as error:
            log.error("%s", error)
            return None
        finally:
            if admission is not InboxAnswer.NEW:
                self._arrivals.pop(id, None)
            if not arrival.accepted.done():
                arrival.accepted.set_result(admission is InboxAnswer.NEW)

    async def _answer(self, arrival: Arrival) -> int:
        if arrival.done.cancelled():
            raise _stopped()
        if self._acknowledges_first:
            return 202
        try:
            error = await asyncio.shield(arrival.done)
        except asyncio.CancelledError:
            if not arrival.done.cancelled():
                raise
            raise _stopped() from None
        if error is not None:
            raise NotificationRefused(500, "the handler failed")
        return 200

    async def _handle(self, arrival: Arrival) -> None:
        """Call the handler, and remember the notification once it has returned."""
        notification, lane = arrival.notification, self._lanes.lane(arrival.lane)
        failure: BaseException | None = None
        try:
            await self._call(notification)
        except Exception as error:
            failure = error
            log.exception("the handler of %s failed", notification.id or "a notification")
        try:
            async with lane.lock:
                last = not lane.has_others(arrival)
                if failure is None:
                    await self._inbox.finish(
                        arrival.id,
                        arrival.lane,
                        self._holder,
                        keep=self._limits.remember,
                        last=last,
                    )
                elif last:
                    await self._inbox.release(arrival.lane, self._holder)
        except InboxFailed as error:
            log.error("%s; %s may be handled again", error, notification.id)
        finally:
            self._arrivals.pop(arrival.id, None)
            arrival.done.set_result(failure)

    async def _call(self, notification: PushNotification) -> None:
        if self._is_async:
            waiting = self._handler(notification)
            if waiting is not None:
                await waiting
        else:
            notification.bind(asyncio.get_running_loop())
            await asyncio.to_thread(self._handler, notification)

    async def fetch_task(self, task_id: str) -> Task:
        """Fetch a task from the agent, which is connected to when first asked."""
        if self._open_agent is None:
            raise ValueError(
                "the receiver knows no agent to fetch tasks from: give it "
                "agent=lambda: parley.connect(url, ...)"
            )
        async with self._agent_lock:
            if self._agent is None:
                self._agent = await self._agent_stack.enter_async_context(self._open_agent())
        return await self._agent.get(task_id)


def _is_async(handler: Any) -> bool:
    function = handler
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def _stopped() -> NotificationRefused:
    return NotificationRefused(503, "the receiver stopped first", retry_after=FULL_SECONDS)


def _busy() -> NotificationRefused:
    return NotificationRefused(503, "another replica handles this task", retry_after=BUSY_SECONDS)
