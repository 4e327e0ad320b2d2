"""Who is told of what was committed, within one process.

A hint is a convenience: whoever follows a task can always ask the store, and does when hints were
too many for it. So a slow reader costs a bounded buffer and never holds anybody up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from parley.log.events import LoggedEvent

logger = logging.getLogger(__name__)

BUFFER_RECORDS = 256
BUFFER_BYTES = 256 * 1024

Listener = Callable[[LoggedEvent], None]


class Subscription:
    """The public events of one task, from now on, for one reader.

    Holds up to ``records`` events or ``size`` bytes of them, and one append that is larger than
    that by itself. When the reader takes too little of it, what it holds is dropped and the reader
    is behind: it has to ask the store for what it missed. Events are shared with all readers.
    """

    __slots__ = ("_behind", "_bytes", "_held", "_records", "_room", "_size", "_waiter")

    def __init__(self, records: int = BUFFER_RECORDS, size: int = BUFFER_BYTES) -> None:
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
        held = self._held
        if not self._behind:
            if held and (
                len(held) + len(events) > self._records or self._bytes + size > self._size
            ):
                self._held = []
                self._bytes = 0
                self._behind = True
            else:
                held.extend(events)
                self._bytes += size
        self._wake(True)

    def take(self) -> tuple[Sequence[LoggedEvent], bool]:
        """Return what came since the last time, and whether something was dropped before it."""
        held, behind = self._held, self._behind
        self._held = []
        self._bytes = 0
        self._behind = False
        return held, behind

    async def wait(self, timeout: float) -> bool:
        """Wait until there is something to take. Return ``False`` when there is not in time."""
        if self._held or self._behind:
            return True
        assert self._waiter is None, "a subscription has one reader"
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout, self._wake, False)
        try:
            return await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self, something: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(something)


class LocalHints:
    """Hands what a store commits to those in this process who asked for it.

    ``publish`` is what a store is opened with. All of it happens on the event loop.
    """

    def __init__(self) -> None:
        self._readers: dict[str, set[Subscription]] = {}
        self._listeners: dict[str, list[Listener]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nobody subscribes or listens."""
        return not (self._readers or self._listeners)

    @property
    def held(self) -> int:
        """How many events are kept for readers that have not taken them, counted for each."""
        return sum([reader.held for readers in self._readers.values() for reader in readers])

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        """Pass on the records of one append. Costs two look-ups when nobody asked for them."""
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
                            listener(record)
                        except Exception:
                            logger.exception("a listener of task %s failed", task_id)

    @contextmanager
    def subscribe(self, task_id: str) -> Iterator[Subscription]:
        """Collect a task's public events, as long as the context lasts."""
        subscription = Subscription()
        self._readers.setdefault(task_id, set()).add(subscription)
        try:
            yield subscription
        finally:
            readers = self._readers[task_id]
            readers.discard(subscription)
            if not readers:
                del self._readers[task_id]

    @contextmanager
    def listen(self, task_id: str, listener: Listener) -> Iterator[None]:
        """Call ``listener`` with each private record of a task, as long as the context lasts.

        It must be quick and must not raise.
        """
        self._listeners.setdefault(task_id, []).append(listener)
        try:
            yield
        finally:
            listeners = self._listeners[task_id]
            listeners.remove(listener)
            if not listeners:
                del self._listeners[task_id]
