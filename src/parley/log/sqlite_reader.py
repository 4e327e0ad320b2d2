"""Threads that read a SQLite store, each with a connection of its own.

Readers never wait for the writer or for each other's transactions: each statement sees the database
as it was when it began.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from parley.log.events import Kind, LoggedEvent, logged
from parley.log.lend import Lender
from parley.log.sqlite_file import SqliteFile, explain
from parley.log.store import StoreUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

_KINDS = {kind.value.encode(): kind for kind in Kind}
_Work = tuple[Callable[[sqlite3.Connection], Any], asyncio.Future[Any]]


class SqliteReaders:
    """Reads on threads. Raises ``StoreUnavailable`` when the database cannot be read."""

    def __init__(self, file: SqliteFile, *, lender: Lender) -> None:
        self._path = file.path
        self._lender = lender
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._ended = [self._loop.create_future() for _ in file.readers]
        for connection, ended in zip(file.readers, self._ended, strict=True):
            threading.Thread(
                target=self._run, args=(connection, ended), name="parley-reader", daemon=True
            ).start()

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Return what ``function`` returns, called on one of the threads."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((function, future))
        self._lender.begin()
        try:
            return await future
        finally:
            self._lender.end()

    async def close(self) -> None:
        """Finish what is asked for, then end the threads and the connections."""
        for _ in self._ended:
            self._queue.put(None)
        await asyncio.gather(*self._ended)

    def _run(self, connection: sqlite3.Connection, ended: asyncio.Future[None]) -> None:
        try:
            while (work := self._queue.get()) is not None:
                function, future = work
                result: Any = None
                error: Exception | None = None
                try:
                    result = function(connection)
                except sqlite3.Error as failure:
                    error = explain(failure, self._path)
                except Exception:
                    logger.exception("%s: what it holds could not be read", self._path)
                    error = StoreUnavailable(f"{self._path}: the store failed; its log says how")
                self._loop.call_soon_threadsafe(_settle, future, result, error)
                del work, function, future, result, error
            connection.close()
            self._loop.call_soon_threadsafe(_settle, ended, None, None)
        except RuntimeError:
            connection.close()  # the loop is no more; nobody waits


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def records_in(task_id: str, lines: bytes | None) -> list[LoggedEvent]:
    """Return the records that a query joined into one value, in the order of the log."""
    records = []
    for line in lines.split(b"\n") if lines else ():
        seq, sub, turn, kind, at, payload = line.split(b" ", 5)
        records.append(
            logged(task_id, int(seq), int(sub), int(turn), _KINDS[kind], int(at), payload)
        )
    return records
