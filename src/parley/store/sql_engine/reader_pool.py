"""Threads that read a database, each by a connection of its own."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from parley.store.sql_engine.gil_yield import GilYielder
from parley.store.task_store import StoreError, StoreUnavailable

logger = logging.getLogger(__name__)

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
T = TypeVar("T")

_Work = tuple[Callable[[Any], Any], asyncio.Future[Any], float]


class ReadConnection(Protocol[C_co]):
    """Where a thread reads."""

    name: str

    def read(self, function: Callable[[C_co], T], asked_at: float) -> T:
        """Return what a function makes of the connection.

        ``asked_at`` is when somebody began to wait for it (``time.monotonic``).
        Raises ``StoreError``.
        """
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class ReaderPool(Generic[C]):
    """Reads on threads, one for each source."""

    def __init__(self, sources: Sequence[ReadConnection[C]], *, lender: GilYielder) -> None:
        self._lender = lender
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._ended = [self._loop.create_future() for _ in sources]
        for source, ended in zip(sources, self._ended, strict=True):
            threading.Thread(
                target=self._run, args=(source, ended), name="parley-reader", daemon=True
            ).start()

    async def run(self, function: Callable[[C], T]) -> T:
        """Return what ``function`` returns, called on one of the threads."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((function, future, time.monotonic()))
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

    def _run(self, source: ReadConnection[C], ended: asyncio.Future[None]) -> None:
        try:
            while (work := self._queue.get()) is not None:
                function, future, asked_at = work
                if future.cancelled():
                    continue  # whoever asked has gone
                result: Any = None
                error: Exception | None = None
                try:
                    result = source.read(function, asked_at)
                except StoreError as failure:
                    error = failure.with_traceback(None)
                except Exception:
                    logger.exception("%s: what it holds could not be read", source.name)
                    error = StoreUnavailable(f"{source.name}: the store failed; its log says how")
                self._loop.call_soon_threadsafe(_settle, future, result, error)
                del work, function, future, result, error
            source.close()
            self._loop.call_soon_threadsafe(_settle, ended, None, None)
        except RuntimeError:
            source.close()  # the loop is no more; nobody waits


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
