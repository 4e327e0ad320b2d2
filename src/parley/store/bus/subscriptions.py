"""Who is told of what was committed: within one process, and by a bus from one to another.

A hint is a convenience: whoever follows a task can always ask the store, and does when hints were
too many for it or one was lost. So a hint may be lost, repeated or late, and a slow reader costs a
bounded buffer and never holds anybody up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from parley.store.events import LoggedEvent
from parley.store.task_store import LogPosition

logger = logging.getLogger(__name__)

BUFFER_RECORDS = 256
BUFFER_BYTES = 256 * 1024

WorkListener = Callable[[str], None]


class Listener(Protocol):
    """Somebody who sees to a task: a lane, the teller of a webhook.

    Both methods must be quick and must not raise. Either may be called again for what is known.
    """

    def heard(self, record: LoggedEvent) -> None:
        """A private record of the task was committed, here or elsewhere."""
        ...

    def moved(self, place: LogPosition) -> None:
        """Somebody looked into the store: the log stands at ``place``."""
        ...


class Follower(Protocol):
    """Somebody who looks into a task's log for himself, and wants to know when: webhooks."""

    def has_news(self, task_id: str) -> None:
        """There may be public events in the log that were not there before.

        Must be quick and must not raise; may be called when there is nothing.
        """
        ...


class Bus(Protocol):
    """Carries hints between the replicas of a store. May lose, repeat and reorder them.

    What it brings it hands to the ``LocalHints`` that it was opened with, on the event loop; what
    this replica told itself does not come back. None of the methods that are not ``async`` waits
    or raises: what cannot be told is dropped.
    """

    @property
    def is_up(self) -> bool:
        """Whether what others tell arrives here, as far as is known."""
        ...

    async def open(self, hints: LocalHints, replica: str) -> None:
        """Connect, or begin to try. Afterwards ``hints.missed`` says when hints may be lost."""
        ...

    def tell(self, records: Sequence[LoggedEvent]) -> None:
        """Tell the other replicas of one append's records."""
        ...

    def work(self, agent: str) -> None:
        """Tell the other replicas that there is unclaimed work of an agent."""
        ...

    def watch(self, task_id: str, cares: bool) -> None:
        """Note that somebody here cares about a task, or that nobody does any longer."""
        ...

    async def close(self) -> None:
        """Disconnect. Idempotent."""
        ...


class Subscription:
    """The public events of one task, from now on, for one reader.

    Holds up to ``records`` events or ``size`` bytes of them, and one append that is larger than
    that by itself. What it holds has no gap. When the reader takes too little of it, what it holds
    is dropped; then, and when something did not come, the reader is behind: it has to ask the store
    for what it missed. Events are shared with all readers.

    ``seen`` is the number of the last event that the reader has, 0 when that is not known. The
    reader sets it when it took events from elsewhere.
    """

    __slots__ = ("_behind", "_bytes", "_held", "_records", "_room", "_size", "_waiter", "seen")

    def __init__(self, records: int = BUFFER_RECORDS, size: int = BUFFER_BYTES) -> None:
        self.seen = 0
        self._records = records
        self._size = size
        self._held: list[LoggedEvent] = []
        self._bytes = 0
        self._behind = False
        self._waiter: asyncio.Future[bool] | None = None

    @property
    def held(self) -> int:
        """How many events it holds."""
        return len(self._held)

    def put(self, events: Sequence[LoggedEvent], size: int) -> None:
        """Hand over the public events of one append, which hold ``size`` bytes."""
        if self._behind:
            return
        held = self._held
        first, last, reached = events[0].seq, events[-1].seq, self._reached()
        if last - first + 1 != len(events):
            self._fall_behind()
        elif not reached or first == reached + 1:
            if held and (
                len(held) + len(events) > self._records or self._bytes + size > self._size
            ):
                self._held = []
                self._bytes = 0
                self._fall_behind()
            else:
                held.extend(events)
                self._bytes += size
                self._wake(True)
        elif first > reached + 1:
            self._fall_behind()
        elif last > reached:
            self.put(events[reached + 1 - first :], size)

    def moved(self, seq: int) -> None:
        """Say that the log stands at event ``seq``."""
        if not self._behind and seq > self._reached():
            self._fall_behind()

    def lost(self) -> None:
        """Say that the reader has to look, whatever it has."""
        self._fall_behind()

    def take(self) -> tuple[Sequence[LoggedEvent], bool]:
        """Return what came since the last time, and whether the store has more by now."""
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
        """Wait until there is something to take. Return ``False`` when there is not in time."""
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
        """Return the number of the last event that the reader has or gets; 0 when not known."""
        held = self._held
        if held and held[-1].seq <= self.seen:
            held.clear()
            self._bytes = 0
        return held[-1].seq if held else self.seen

    def _fall_behind(self) -> None:
        self._behind = True
        self._wake(True)

    def _wake(self, something: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(something)


class LocalHints:
    """Hands what is committed to those in this process who asked for it.

    ``publish`` is what a store is opened with, where no other replica uses it. All of it happens on
    the event loop. Two more may be told, and are by ``HintRelay``: ``interest`` of a task when the
    first comes who cares about it, and when the last goes; ``look`` of tasks (or all that anybody
    cares about, ``None``) whose news did not come with records.
    """

    def __init__(self) -> None:
        self.interest: Callable[[str, bool], None] | None = None
        self.look: Callable[[str | None], None] | None = None
        self._readers: dict[str, set[Subscription]] = {}
        self._listeners: dict[str, list[Listener]] = {}
        self._followers: dict[str, Follower] = {}
        self._workers: list[WorkListener] = []

    @property
    def is_idle(self) -> bool:
        """Whether nobody cares about any task."""
        return not (self._readers or self._listeners or self._followers)

    @property
    def held(self) -> int:
        """How many events are kept for readers that have not taken them, counted for each."""
        return sum([reader.held for readers in self._readers.values() for reader in readers])

    @property
    def watched(self) -> Collection[str]:
        """The tasks that somebody here cares about, as of now."""
        return self._readers.keys() | self._listeners.keys() | self._followers.keys()

    def is_watched(self, task_id: str) -> bool:
        """Whether somebody here cares about a task."""
        return task_id in self._readers or task_id in self._listeners or task_id in self._followers

    def is_worked_on(self, task_id: str) -> bool:
        """Whether a lane here works on a task, so that what is committed to it mostly is here."""
        return task_id in self._listeners

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        """Pass on records of one task. Costs three look-ups when nobody asked for them."""
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
                        try:
                            listener.heard(record)
                        except Exception:
                            logger.exception("a listener of task %s failed", task_id)
        if task_id in self._followers and any([record.sub == 0 for record in records]):
            self._followers[task_id].has_news(task_id)

    def moved(self, place: LogPosition) -> None:
        """Pass on where a task's log stands: whoever does not know looks into the store."""
        for reader in self._readers.get(place.task_id, ()):
            reader.moved(place.seq)
        for listener in tuple(self._listeners.get(place.task_id, ())):
            try:
                listener.moved(place)
            except Exception:
                logger.exception("a listener of task %s failed", place.task_id)
        self._has_news(place.task_id)

    def news(self, task_id: str, seq: int) -> None:
        """Pass on that a task's log has reached event ``seq``, and not all of it came."""
        for reader in self._readers.get(task_id, ()):
            reader.moved(seq)
        self._has_news(task_id)
        if self.look is not None and task_id in self._listeners:
            self.look(task_id)

    def gone(self, task_id: str) -> None:
        """Pass on that the store has no such task: who follows it looks, and finds that out."""
        for reader in self._readers.get(task_id, ()):
            reader.lost()
        self._has_news(task_id)

    def _has_news(self, task_id: str) -> None:
        follower = self._followers.get(task_id)
        if follower is not None:
            follower.has_news(task_id)

    def missed(self, task_id: str | None = None) -> None:
        """Say that hints of a task, or of any, may have been lost: the store is asked about it, or
        about all.
        """
        if self.look is not None:
            self.look(task_id)

    def work(self, agent: str) -> None:
        """Pass on that there is unclaimed work of an agent."""
        for worker in tuple(self._workers):
            try:
                worker(agent)
            except Exception:
                logger.exception("looking for work of the agent %s failed", agent)

    @contextmanager
    def subscribe(self, task_id: str) -> Iterator[Subscription]:
        """Collect a task's public events, as long as the context lasts."""
        subscription = Subscription()
        readers = self._readers.get(task_id)
        if readers is None:
            is_first = not self.is_watched(task_id)
            readers = self._readers[task_id] = set()
            if is_first and self.interest is not None:
                self.interest(task_id, True)
        readers.add(subscription)
        try:
            yield subscription
        finally:
            readers.discard(subscription)
            if not readers:
                del self._readers[task_id]
                self._left(task_id)

    def listen(self, task_id: str, listener: Listener) -> AbstractContextManager[None]:
        """Tell ``listener`` of a task's private records, as long as the context lasts."""
        return _Listening(self, task_id, listener)

    def begin(self, task_id: str, listener: Listener) -> None:
        """Tell ``listener`` of a task's private records, until ``end``."""
        listeners = self._listeners.get(task_id)
        if listeners is None:
            is_first = not self.is_watched(task_id)
            listeners = self._listeners[task_id] = []
            if is_first and self.interest is not None:
                self.interest(task_id, True)
        listeners.append(listener)

    def end(self, task_id: str, listener: Listener) -> None:
        """Tell ``listener`` of the task no more."""
        listeners = self._listeners[task_id]
        listeners.remove(listener)
        if not listeners:
            del self._listeners[task_id]
            self._left(task_id)

    def follow(self, task_id: str, follower: Follower) -> None:
        """Tell ``follower`` whenever there may be more in a task's log, until ``unfollow``.

        A task has one such: there may be very many tasks of which nothing else is known here.
        """
        is_first = not self.is_watched(task_id)
        self._followers[task_id] = follower
        if is_first and self.interest is not None:
            self.interest(task_id, True)

    def unfollow(self, task_id: str) -> None:
        """Tell nobody any more who follows a task. Idempotent."""
        if self._followers.pop(task_id, None) is not None:
            self._left(task_id)

    def _left(self, task_id: str) -> None:
        if self.interest is not None and not self.is_watched(task_id):
            self.interest(task_id, False)

    @contextmanager
    def listen_work(self, listener: WorkListener) -> Iterator[None]:
        """Tell ``listener`` of agents that have unclaimed work, as long as the context lasts."""
        self._workers.append(listener)
        try:
            yield
        finally:
            self._workers.remove(listener)


class _Listening:
    """Tells a listener of a task while the context lasts."""

    __slots__ = ("_hints", "_listener", "_task_id")

    def __init__(self, hints: LocalHints, task_id: str, listener: Listener) -> None:
        self._hints = hints
        self._task_id = task_id
        self._listener = listener

    def __enter__(self) -> None:
        self._hints.begin(self._task_id, self._listener)

    def __exit__(self, *error: object) -> None:
        self._hints.end(self._task_id, self._listener)
