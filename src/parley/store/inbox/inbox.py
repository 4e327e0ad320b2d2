"""The inbox of a receiver of notifications, in memory or in a SQLite file.

A notification has an id and a lane: its task. A lane is held by one replica at a time, so the
notifications of a task are handled in one place, in order. An id that was handled is remembered
until it expires: the same notification again is a duplicate, or a replay.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeVar

from parley.database.sqlite.private_file import UnsafeFile, open_private
from parley.store.protocols.errors import StoreError
from parley.store.sql import queries

R = TypeVar("R")

PRUNE_SECONDS = 60.0
"""How often expired rows are removed."""

_SQL = queries("sqlite", "inbox.sql")
_SETTINGS = ("wait_for_lock", "keep_journal", "configure")
_TABLES = ("create_handled", "create_expiry", "create_lanes")


class InboxFailed(StoreError):
    """The inbox does not answer. The message holds no password."""


class InboxAnswer(Enum):
    """The answer of an inbox about a notification that arrived."""

    NEW = "new"
    """The lane is held by who asked, until its lease ends."""
    HANDLED = "handled"
    BUSY = "busy"
    """Another replica holds the lane."""


class Inbox(Protocol):
    """Remembers notifications. Every method raises ``InboxFailed`` when the store fails.

    Times are in seconds from now. Lanes and ids expire by themselves.
    """

    async def open(self) -> None:
        """Connect, and create missing tables."""
        ...

    async def admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer:
        """Take the lane for ``lease`` seconds, unless the id was handled or another holds it.

        It is one atomic step. A notification without an id (``""``) is always new.
        """
        ...

    async def finish(self, id: str, lane: str, holder: str, *, keep: float, last: bool) -> None:
        """Remember an id as handled for ``keep`` seconds. With ``last``, release the lane."""
        ...

    async def release(self, lane: str, holder: str) -> None:
        """Release a lane; nothing happens if another holds it by now."""
        ...

    async def renew(self, lanes: Collection[str], holder: str, lease: float) -> None:
        """Hold lanes for ``lease`` seconds from now, unless another holds them by now."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


class MemoryInbox:
    """An inbox of one process, which forgets all when that ends.

    It remembers the last ``max_ids`` ids: the oldest are forgotten first.
    """

    def __init__(
        self, *, max_ids: int = 100_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if max_ids < 1:
            raise ValueError(f"max_ids is 1 or more, not {max_ids}")
        self._max_ids = max_ids
        self._clock = clock
        self._handled: dict[str, float] = {}  # in the order in which they were handled
        self._lanes: dict[str, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._handled)

    async def open(self) -> None:
        """Do nothing: there is nothing to open."""

    async def admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer:
        """Take the lane, unless the id was handled or another holds it."""
        now = self._clock()
        if id and self._handled.get(id, now) > now:
            return InboxAnswer.HANDLED
        held_by, until = self._lanes.get(lane, (holder, 0.0))
        if held_by != holder and until > now:
            return InboxAnswer.BUSY
        self._lanes[lane] = (holder, now + lease)
        return InboxAnswer.NEW

    async def finish(self, id: str, lane: str, holder: str, *, keep: float, last: bool) -> None:
        """Remember an id as handled."""
        now = self._clock()
        if id:
            self._handled.pop(id, None)
            self._handled[id] = now + keep
        while self._handled:
            oldest = next(iter(self._handled))
            if len(self._handled) <= self._max_ids and self._handled[oldest] > now:
                break
            del self._handled[oldest]
        if last:
            await self.release(lane, holder)

    async def release(self, lane: str, holder: str) -> None:
        """Release a lane."""
        if self._lanes.get(lane, ("", 0.0))[0] == holder:
            del self._lanes[lane]

    async def renew(self, lanes: Collection[str], holder: str, lease: float) -> None:
        """Hold lanes for longer."""
        until = self._clock() + lease
        for lane in lanes:
            if self._lanes.get(lane, (holder, 0.0))[0] == holder:
                self._lanes[lane] = (holder, until)

    async def close(self) -> None:
        """Do nothing: leases end by themselves."""


class ThreadedInbox(ABC):
    """Runs the operations of an inbox in its thread, which has the one connection."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "parley-inbox")
        self._pruned_at = 0.0

    async def open(self) -> None:
        """Connect, and create missing tables."""
        await self._run(self._connect)

    async def admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer:
        """Take the lane, unless the id was handled or another holds it."""
        return await self._run(lambda: self._admit(id, lane, holder, lease))

    async def finish(self, id: str, lane: str, holder: str, *, keep: float, last: bool) -> None:
        """Remember an id as handled. Expired rows are removed now and then."""
        now = time.monotonic()
        prunes = now - self._pruned_at >= PRUNE_SECONDS
        if prunes:
            self._pruned_at = now
        await self._run(lambda: self._finish(id, lane if last else "", holder, keep, prunes))

    async def release(self, lane: str, holder: str) -> None:
        """Release a lane."""
        await self._run(lambda: self._release(lane, holder))

    async def renew(self, lanes: Collection[str], holder: str, lease: float) -> None:
        """Hold lanes for longer."""
        await self._run(lambda: self._renew(list(lanes), holder, lease))

    async def close(self) -> None:
        """Disconnect."""
        await self._run(self._disconnect)

    async def _run(self, job: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    @abstractmethod
    def _connect(self) -> None: ...

    @abstractmethod
    def _admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer: ...

    @abstractmethod
    def _finish(self, id: str, lane: str, holder: str, keep: float, prunes: bool) -> None:
        """Remember an id, and release ``lane`` unless it is empty."""

    @abstractmethod
    def _release(self, lane: str, holder: str) -> None: ...

    @abstractmethod
    def _renew(self, lanes: list[str], holder: str, lease: float) -> None: ...

    @abstractmethod
    def _disconnect(self) -> None: ...


class SqliteInbox(ThreadedInbox):
    """Remembers notifications in a file of its own, private to its owner."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = Path(path)
        self._connection: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"SqliteInbox({str(self._path)!r})"

    def _connect(self) -> None:
        if self._connection is not None:
            return
        try:
            os.close(open_private(self._path, creates=True))
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=5.0
            )
            for name in (*_SETTINGS, *_TABLES):
                connection.execute(_SQL[name]).close()
        except (OSError, UnsafeFile, sqlite3.Error) as error:
            raise InboxFailed(f"the inbox {self._path} cannot be opened: {error}") from error
        self._connection = connection

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        self._connect()
        connection = self._connection
        assert connection is not None
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise InboxFailed(f"the inbox {self._path} fails: {error}") from error

    def _admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer:
        now = time.time()
        with self._transaction() as connection:
            if id and connection.execute(_SQL["is_handled"], (id, now)).fetchone():
                return InboxAnswer.HANDLED
            taken = connection.execute(_SQL["take_lane"], (lane, holder, now + lease, now))
            return InboxAnswer.NEW if taken.rowcount else InboxAnswer.BUSY

    def _finish(self, id: str, lane: str, holder: str, keep: float, prunes: bool) -> None:
        now = time.time()
        with self._transaction() as connection:
            if id:
                connection.execute(_SQL["remember"], (id, now + keep))
            if lane:
                connection.execute(_SQL["release"], (lane, holder))
            if prunes:
                connection.execute(_SQL["prune_handled"], (now,))
                connection.execute(_SQL["prune_lanes"], (now,))

    def _release(self, lane: str, holder: str) -> None:
        with self._transaction() as connection:
            connection.execute(_SQL["release"], (lane, holder))

    def _renew(self, lanes: list[str], holder: str, lease: float) -> None:
        until = time.time() + lease
        with self._transaction() as connection:
            connection.executemany(_SQL["renew"], [(until, lane, holder) for lane in lanes])

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
