"""Subscriptions to tasks in this process, and the ``Bus`` that brings the hints of other replicas.

A hint is a wake-up notification: a task's log has grown. It may be lost, repeated or late, since
the store has the truth; records that are sent with a hint save a query.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, Self, TypeVar

from parley.observe import metrics
from parley.store.events import LoggedEvent
from parley.store.protocols.task_log import LogPosition

logger = logging.getLogger(__name__)

T = TypeVar("T")

BUFFER_RECORDS = 512
"""Twice the records that a writer appends at a time. In the same iteration of the event loop a
timer may append a chunk, and a reader that reads in each iteration must not fall behind because of
it.
"""

BUFFER_BYTES = 256 * 1024

WorkListener = Callable[[str], None]

Follower = Callable[[str], None]
"""Called when the log of a task, which the follower reads itself, may have new public events.

Must be quick and must not raise; may be called without new events.
"""


class Listener(Protocol):
    """Receives the private records of a task that it works on: a task runner.

    Both methods must be quick and must not raise. Either may be called again for known records.
    """

    def on_record(self, record: LoggedEvent) -> None:
        """Receive a private record of the task that any replica committed."""
        ...

    def on_position(self, position: LogPosition) -> None:
        """Receive the position of the task's log that the store has just returned."""
        ...


class Bus(Protocol):
    """Carries hints between the replicas of a store. May lose, repeat and reorder them.

    It passes the hints of other replicas to the ``LocalHints`` that it was opened with, on the
    event loop, and never its own hints. The methods that are not ``async`` neither wait nor raise:
    they drop hints that cannot be sent.
    """

    @property
    def is_up(self) -> bool:
        """Return whether the hints of other replicas arrive, as far as known."""
        ...

    async def open(self, hints: LocalHints, replica: str) -> None:
        """Connect, or begin to try. From then on ``hints.notify_lost`` reports lost hints."""
        ...

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        """Send the records of one append to the other replicas."""
        ...

    def publish_work(self, agent: str) -> None:
        """Notify the other replicas that an agent has unclaimed work."""
        ...

    def watch(self, task_id: str, is_watched: bool) -> None:
        """Note that this replica watches a task, or no longer does."""
        ...

    async def close(self) -> None:
        """Disconnect. Idempotent."""
        ...


class Subscription:
    """A buffer of one task's public events, from now on, for one reader.

    It holds up to ``records`` events or ``size`` bytes of them, or a single larger append, without
    a gap. On an overflow it drops its content; then, and when events are missing, the reader is
    behind and must read the store. Events are shared with all readers.

    ``seen`` is the number of the reader's last event, 0 when it is unknown. A reader that got
    events from the store sets it.
    """

    __slots__ = ("_behind", "_bytes", "_held", "_records", "_size", "_waiter", "seen")

    def __init__(self, records: int = BUFFER_RECORDS, size: int = BUFFER_BYTES) -> None:
        self.seen = 0
        self._records = records
        self._size = size
        self._held: list[LoggedEvent] = []
        self._bytes = 0
        self._behind = False
        self._waiter: asyncio.Future[bool] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: the subscriber ends the subscription."""

    @property
    def held(self) -> int:
        """Return the number of buffered events."""
        return len(self._held)

    def put(self, events: Sequence[LoggedEvent], size: int) -> None:
        """Add the public events of one append, ``size`` bytes in all."""
        if self._behind:
            return
        held = self._held
        first, last, reached = events[0].seq, events[-1].seq, self._reached()
        if last - first + 1 != len(events):
            self.fall_behind()
        elif not reached or first == reached + 1:
            if held and (
                len(held) + len(events) > self._records or self._bytes + size > self._size
            ):
                self._held = []
                self._bytes = 0
                self.fall_behind()
            else:
                held.extend(events)
                self._bytes += size
                self._wake(True)
        elif first > reached + 1:
            self.fall_behind()
        elif last > reached:
            self.put(events[reached + 1 - first :], size)

    def advance(self, seq: int) -> None:
        """Fall behind if the log, which has reached event ``seq``, has more than was received."""
        if not self._behind and seq > self._reached():
            self.fall_behind()

    def fall_behind(self) -> None:
        """Have the reader read the store."""
        if metrics.current is not None and not self._behind:
            metrics.current.of("behind").inc()
        self._behind = True
        self._wake(True)

    def take(self) -> tuple[Sequence[LoggedEvent], bool]:
        """Return the events since the last call, and whether the reader is behind."""
        held, behind = self._held, self._behind
        if behind:
            self.seen = 0
        elif held:
            self.seen = held[-1].seq
        self._held = []
        self._bytes = 0
        self._behind = False
        return held, behind

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until there are events to take. Return ``False`` on a timeout."""
        if self._held or self._behind:
            return True
        assert self._waiter is None, "a subscription has one reader"
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, self._wake, False)
        try:
            return await self._waiter
        finally:
            if timer is not None:
                timer.cancel()
            self._waiter = None

    def _reached(self) -> int:
        """Return the number of the last event that the reader has or gets; 0 when unknown."""
        held = self._held
        if held and held[-1].seq <= self.seen:
            held.clear()
            self._bytes = 0
        return held[-1].seq if held else self.seen

    def _wake(self, something: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(something)


class LocalHints:
    """The subscriptions of this process: passes on the commits to a task.

    An embedded store is opened with ``publish``. Everything happens on the event loop.
    ``BusPoller`` sets two callbacks: ``on_interest`` is called when a task gets its first
    subscriber and when it loses its last, ``on_lookup`` with a task (``None`` for all watched
    tasks) to be queried in the store.
    """

    def __init__(self) -> None:
        self.on_interest: Callable[[str, bool], None] | None = None
        self.on_lookup: Callable[[str | None], None] | None = None
        self._readers: dict[str, dict[Subscription, None]] = {}
        self._listeners: dict[str, dict[Listener, None]] = {}
        self._followers: dict[str, Follower] = {}
        self._workers: list[WorkListener] = []

    @property
    def readers(self) -> int:
        """Return the number of subscriptions."""
        return sum(map(len, self._readers.values()))

    @property
    def held(self) -> int:
        """Return the number of buffered events, each counted once per reader."""
        return sum([reader.held for readers in self._readers.values() for reader in readers])

    @property
    def watched(self) -> Collection[str]:
        """Return the tasks that have subscribers, as of now."""
        return self._readers.keys() | self._listeners.keys() | self._followers.keys()

    def is_watched(self, task_id: str) -> bool:
        """Return whether a task has a subscriber."""
        return task_id in self._readers or task_id in self._listeners or task_id in self._followers

    def is_read(self, task_id: str) -> bool:
        """Return whether a reader of this process follows a task."""
        return task_id in self._readers

    def has_listener(self, task_id: str) -> bool:
        """Return whether this process works on a task, and so commits most of it itself."""
        return task_id in self._listeners

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        """Pass on records of one task. Costs three look-ups when it has no subscribers."""
        if not records:
            return
        task_id = records[0].task_id
        readers = self._readers.get(task_id)
        if readers:
            events = [record for record in records if record.sub == 0]
            if events:
                size = sum([len(event.payload) for event in events])
                for reader in readers:
                    reader.put(events, size)
        listeners = self._listeners.get(task_id)
        if listeners:
            for record in records:
                if record.sub:
                    for listener in tuple(listeners):
                        _tell(listener.on_record, record, "a listener of task %s failed", task_id)
        if task_id in self._followers and any([record.sub == 0 for record in records]):
            self._followers[task_id](task_id)

    def notify_position(self, position: LogPosition) -> None:
        """Pass on where the store has a task's log."""
        for reader in self._readers.get(position.task_id, ()):
            reader.advance(position.seq)
        task_id = position.task_id
        for listener in tuple(self._listeners.get(task_id, ())):
            _tell(listener.on_position, position, "a listener of task %s failed", task_id)
        self._notify_follower(task_id)

    def notify_seq(self, task_id: str, seq: int) -> None:
        """Notify that a task's log has reached event ``seq``, and not all records were received."""
        for reader in self._readers.get(task_id, ()):
            reader.advance(seq)
        self._notify_follower(task_id)
        if task_id in self._listeners:
            self.notify_lost(task_id)

    def notify_deleted(self, task_id: str) -> None:
        """Let the subscribers of a task that the store does not have notice that."""
        for reader in self._readers.get(task_id, ()):
            reader.fall_behind()
        self._notify_follower(task_id)

    def notify_lost(self, task_id: str | None = None) -> None:
        """Request a query of the store for a task, or all, whose hints may have been lost."""
        if self.on_lookup is not None:
            self.on_lookup(task_id)

    def notify_work(self, agent: str) -> None:
        """Pass on that an agent has unclaimed work."""
        for worker in tuple(self._workers):
            _tell(worker, agent, "looking for work of the agent %s failed", agent)

    def _notify_follower(self, task_id: str) -> None:
        follower = self._followers.get(task_id)
        if follower is not None:
            follower(task_id)

    def subscribe(self, task_id: str) -> AbstractContextManager[Subscription]:
        """Buffer a task's public events, as long as the context lasts."""
        return _Interest(self, self._readers, task_id, Subscription())

    def listen(self, task_id: str, listener: Listener) -> AbstractContextManager[Any]:
        """Pass a task's private records to ``listener``, as long as the context lasts."""
        return _Interest(self, self._listeners, task_id, listener)

    def follow(self, task_id: str, follower: Follower) -> None:
        """Notify ``follower`` whenever a task's log may hold more, until ``unfollow``.

        A task has one follower. There may be very many tasks with a follower alone.
        """
        self.begin_interest(task_id)
        self._followers[task_id] = follower

    def unfollow(self, task_id: str) -> None:
        """Notify the follower of a task no more. Idempotent."""
        if self._followers.pop(task_id, None) is not None:
            self.end_interest(task_id)

    def begin_interest(self, task_id: str) -> None:
        """Note that a task is about to get a subscriber."""
        if self.on_interest is not None and not self.is_watched(task_id):
            self.on_interest(task_id, True)

    def end_interest(self, task_id: str) -> None:
        """Record that a subscriber of a task has left."""
        if self.on_interest is not None and not self.is_watched(task_id):
            self.on_interest(task_id, False)

    @contextmanager
    def listen_work(self, listener: WorkListener) -> Iterator[None]:
        """Pass agents with unclaimed work to ``listener``, as long as the context lasts."""
        self._workers.append(listener)
        try:
            yield
        finally:
            self._workers.remove(listener)


def _tell(hear: Callable[[T], None], news: T, failed: str, name: str) -> None:
    """Notify of a commit, which remains valid even if a subscriber fails."""
    try:
        hear(news)
    except Exception:
        logger.exception(failed, name)


class _Interest(Generic[T]):
    """Membership among the subscribers of a task, as long as the context lasts."""

    __slots__ = ("_hints", "_member", "_members", "_task_id")

    def __init__(
        self, hints: LocalHints, members: dict[str, dict[T, None]], task_id: str, member: T
    ) -> None:
        self._hints = hints
        self._members = members
        self._task_id = task_id
        self._member = member

    def __enter__(self) -> T:
        self._hints.begin_interest(self._task_id)
        self._members.setdefault(self._task_id, {})[self._member] = None
        return self._member

    def __exit__(self, *error: object) -> None:
        members = self._members[self._task_id]
        members.pop(self._member, None)
        if not members:
            del self._members[self._task_id]
            self._hints.end_interest(self._task_id)
