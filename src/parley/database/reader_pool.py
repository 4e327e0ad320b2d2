"""Threads that read a database, each with a connection of its own."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from parley.database.errors import StoreError, StoreUnavailable
from parley.database.gil_yield import GilYielder

logger = logging.getLogger(__name__)

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
T = TypeVar("T")

_Work = tuple[Callable[[Any], Any], asyncio.Future[Any], float]


class ReadConnection(Protocol[C_co]):
    """The connection of a reader thread."""

    name: str

    def read(self, function: Callable[[C_co], T], asked_at: float) -> T:
        """Call ``function`` with the connection; return its result.

        ``asked_at`` is when the caller began to wait (``time.monotonic``). Raises ``StoreError``.
        """
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class ReaderPool(Generic[C]):
    """Reads on daemon threads, one for each connection."""

    def __init__(self, connections: Sequence[ReadConnection[C]], *, yielder: GilYielder) -> None:
        self._yielder = yielder
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._ended = [self._loop.create_future() for _ in connections]
        for connection, ended in zip(connections, self._ended, strict=True):
            threading.Thread(
                target=self._run, args=(connection, ended), name="parley-reader", daemon=True
            ).start()

    async def run(self, function: Callable[[C], T]) -> T:
        """Return what ``function`` returns, called on one of the threads."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((function, future, time.monotonic()))
        self._yielder.begin()
        try:
            return await future
        finally:
            self._yielder.end()

    async def close(self) -> None:
        """Finish the submitted reads, then end the threads and the connections."""
        for _ in self._ended:
            self._queue.put(None)
        await asyncio.gather(*self._ended)

    def _run(self, connection: ReadConnection[C], ended: asyncio.Future[None]) -> None:
        try:
            while (work := self._queue.get()) is not None:
                function, future, asked_at = work
                if future.cancelled():
                    continue  # nobody waits any more
                result: Any = None
                error: Exception | None = None
                try:
                    result = connection.read(function, asked_at)
                except StoreError as failure:
                    error = failure.with_traceback(None)
                except Exception:
                    logger.exception("%s: a read failed", connection.name)
                    error = StoreUnavailable(
                        f"{connection.name}: the store failed; its log says how"
                    )
                self._loop.call_soon_threadsafe(_resolve, future, result, error)
                del work, function, future, result, error
            connection.close()
            self._loop.call_soon_threadsafe(_resolve, ended, None, None)
        except RuntimeError:
            connection.close()  # the loop is closed; nobody waits


def _resolve(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
