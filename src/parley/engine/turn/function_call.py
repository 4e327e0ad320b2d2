"""Calls the function of an attempt, and stops it: by cancellation, after a time, for good."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from parley.engine.turn.attempt import Attempt

Invoke = Callable[[Attempt], Awaitable[object]]


class FunctionCall:
    """Calls an author's function in the task that runs a runner, one attempt after another.

    ``cancel`` and ``stop`` cancel the function alone. Whoever cancels the task itself ends the
    runner: the function is cancelled, and ``run`` raises the cancellation.
    """

    # Defaults of the class, as those of a runner.
    is_running = False
    _task: asyncio.Task[None] | None = None
    _cancellations = 0
    _timer: asyncio.TimerHandle | None = None
    _grace_timer: asyncio.TimerHandle | None = None

    async def run(
        self,
        invoke: Invoke | None,
        attempt: Attempt,
        *,
        task: asyncio.Task[None],
        seconds: float | None,
        on_timeout: Callable[[], None],
    ) -> tuple[object, BaseException | None]:
        """Call the function in ``task``, the current one, and return its value or its exception.

        ``on_timeout`` is called after ``seconds``, if it still runs. Without ``invoke`` the attempt
        ends without a call. Raises ``CancelledError`` if the task was cancelled by someone else.
        """
        failure: BaseException | None = None
        value: object = None
        self._task = task
        self.is_running = True
        if seconds is not None:
            self._timer = task.get_loop().call_later(seconds, on_timeout)
        try:
            if invoke is not None:
                value = await invoke(attempt)
        except BaseException as error:
            failure = error
        finally:
            self.is_running = False
            for call in attempt.calls:
                call.cancel()
            for close in attempt.on_end:
                close()
            if self._timer is not None or self._grace_timer is not None:
                self._stop_timers()
        try:
            if cancelling := task.cancelling():
                if cancelling > self._cancellations and isinstance(failure, asyncio.CancelledError):
                    raise failure
                self._cancellations = 0
                await _absorb_cancellation(task)
            return value, failure
        finally:
            failure = None  # its traceback has this frame: a reference cycle

    def cancel(self) -> None:
        """Cancel the function, if it runs."""
        if self._task is not None and self.is_running:
            self._cancellations += 1
            self._task.cancel()

    def stop(self, grace: float, on_stuck: Callable[[], None]) -> None:
        """Cancel the function, and call ``on_stuck`` if it still runs after ``grace`` seconds."""
        if self.is_running:
            self.cancel()
            if self._grace_timer is None:
                loop = asyncio.get_running_loop()
                self._grace_timer = loop.call_later(grace, self._is_stuck, on_stuck)

    def stop_soon(self, grace: float, on_stuck: Callable[[], None]) -> None:
        """``stop`` the function if it still runs after ``grace`` seconds. Thread-safe."""
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._wait_for_end, grace, on_stuck)

    def _wait_for_end(self, grace: float, on_stuck: Callable[[], None]) -> None:
        if self.is_running and self._grace_timer is None:
            loop = asyncio.get_running_loop()
            self._grace_timer = loop.call_later(grace, self._stop_late, grace, on_stuck)

    def _stop_late(self, grace: float, on_stuck: Callable[[], None]) -> None:
        self._grace_timer = None
        self.stop(grace, on_stuck)

    def _is_stuck(self, on_stuck: Callable[[], None]) -> None:
        self._grace_timer = None
        if self.is_running:
            on_stuck()

    def _stop_timers(self) -> None:
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _absorb_cancellation(task: asyncio.Task[None]) -> None:
    """Clear the cancellations by which a runner cancelled its own function."""
    while task.uncancel():
        pass
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # raises a cancellation that the function did not get to see
