"""A database as an application uses it: functions that read, and functions that write in groups."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from parley.database.errors import StoreUnavailable
from parley.database.gil_yield import GilYielder
from parley.database.group_commit import BatchWriter, GroupWriter, Job
from parley.database.reader_pool import ReadConnection, ReaderPool

C = TypeVar("C")
T = TypeVar("T")

Opened = tuple[BatchWriter[Job], Sequence[ReadConnection[C]]]
"""The writer and the readers of a database that was opened."""


class Database(ABC, Generic[C]):
    """Reads on threads, and writes on one: what is written at the same time is one transaction.

    ``name`` is its location as shown to people. Functions are called with a connection, on a
    thread. They raise ``StoreError`` to reject what was asked; the error reaches the caller.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.migrated: Sequence[str] = ()
        """The migrations that ``open`` ran."""
        self._writing: GroupWriter[Job] | None = None
        self._reading: ReaderPool[C] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @abstractmethod
    def _open(self) -> Opened[C]:
        """Open the database, its schema up to date. It may block. Raises ``StoreUnavailable``."""

    def _release(self) -> None:
        """Release what is held beside the connections, after they are closed."""
        return

    @property
    @abstractmethod
    def unavailable_reason(self) -> str:
        """Why nothing can be written now, as far as known; empty while it can."""

    async def open(self) -> None:
        """Open the database, its schema up to date. Raises ``StoreUnavailable``."""
        if self._writing is not None:
            raise RuntimeError("the database is open already")
        writer, readers = await asyncio.to_thread(self._open)
        yielder = GilYielder(asyncio.get_running_loop())
        self._writing = GroupWriter(writer, yielder=yielder)
        self._reading = ReaderPool(readers, yielder=yielder)

    async def close(self) -> None:
        """Finish what was asked, and close the database. Idempotent."""
        writing, reading, self._writing, self._reading = self._writing, self._reading, None, None
        if writing is not None and reading is not None:
            await reading.close()
            await writing.close()
            self._release()

    async def read(self, function: Callable[[C], T]) -> T:
        """Return what a function returns that reads. Raises ``StoreError``."""
        if self._reading is None:
            raise self._closed()
        return await self._reading.run(function)

    async def write(self, function: Callable[[C], T], *, size: int = 0) -> T:
        """Return what a function returns, once what it wrote is durable. Raises ``StoreError``.

        Nothing of what it wrote stays when it raises. It may be called more than once. ``size`` is
        about how many bytes it writes: groups are bounded.
        """
        if self._writing is None:
            raise self._closed()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._writing.submit(Job(future, partial(_without_records, function), size))
        return await future

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.name}: the database is closed")


def _without_records(function: Callable[[C], T], connection: C) -> tuple[T, Sequence[Any]]:
    return function(connection), ()
