"""A run of the framework in a thread of its own, for a turn in the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from typing import Any, TypeVar

from parley.agent.turn import Turn

R = TypeVar("R")

Show = Callable[[], Coroutine[Any, Any, None]]
"""Makes what the event loop awaits to show something."""


class ThreadStopped(BaseException):
    """The turn has ended or waits, so its thread ends too. No handler of ``Exception`` stops it."""


class ThreadedRun:
    """Runs blocking code of a framework in a thread, which may use the turn by ``wait``.

    What the framework shows is put in a queue, and written in order by the event loop. When the
    turn is canceled, or parks for an answer, what the thread waits for is canceled, and the thread
    ends where it next calls ``wait`` or ``show``. A blocking call that does neither goes on.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._loop = asyncio.get_running_loop()
        self._shown: asyncio.Queue[Show | None] = asyncio.Queue()
        self._lock = threading.Lock()
        self._waits: set[Future[Any]] = set()
        self._is_stopped = False

    async def run(self, function: Callable[[], R]) -> R:
        """Call a function in a thread, with the context of the caller, and return its result.

        One after the other, a run may call several.
        """
        self._is_stopped = False
        done: asyncio.Future[R] = self._loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            self._shown.put_nowait(None)
            if done.cancelled() or self._is_stopped:
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def work() -> None:
            token = _RUN.set(self)
            result, error = None, None
            try:
                result = function()
            except ThreadStopped:
                return
            except BaseException as raised:
                error = raised
            finally:
                _RUN.reset(token)
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=context.run, args=(work,), name="crewai", daemon=True).start()
        try:
            while (show := await self._shown.get()) is not None:
                await show()
                self._shown.task_done()
            self._shown.task_done()
            return await done
        finally:
            self._stop()

    def show(self, make: Show) -> None:
        """Have the event loop await what ``make`` returns, after all that was shown before."""
        if self._is_stopped:
            raise ThreadStopped
        self._loop.call_soon_threadsafe(self._shown.put_nowait, make)

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the event loop, after all that was shown, and return its result.

        Call it in a thread of the run. Raises ``ThreadStopped`` when the turn ends meanwhile.
        """

        async def after_output() -> R:
            await self._shown.join()
            return await coroutine

        with self._lock:
            if self._is_stopped:
                coroutine.close()
                raise ThreadStopped
            future = asyncio.run_coroutine_threadsafe(after_output(), self._loop)
            self._waits.add(future)
        try:
            return future.result()
        except CancelledError:
            raise ThreadStopped from None
        finally:
            self._waits.discard(future)

    def _stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            waits = list(self._waits)
        for future in waits:
            future.cancel()


_RUN: ContextVar[ThreadedRun | None] = ContextVar("parley_crewai_run", default=None)


def current_run() -> ThreadedRun | None:
    """Return the run whose thread this is, ``None`` outside of one."""
    return _RUN.get()
