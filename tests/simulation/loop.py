"""An event loop without clock, threads or sockets: a seed decides the order of execution.

Code is grouped in processes (a replica, a client, the database). Within a process, callbacks run in
asyncio's order; the next process is random. Time is virtual: it advances when all processes are
idle, and a little with each callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

HANDLE_SECONDS = 20e-6
"""Virtual time that passes with each callback."""

MOST_STEPS = 1_000_000


class Stuck(Exception):
    """The simulation does not come to an end: nothing will ever happen, or too much."""


_numbers = [count()]


def numbered(self: Any) -> int:
    """Return a hash that does not depend on an object's address, to be set on its class."""
    try:
        return self._numbered  # type: ignore[no-any-return]
    except AttributeError:
        self._numbered = next(_numbers[0])
        return self._numbered  # type: ignore[no-any-return]


class _Task(asyncio.Task):
    """A task whose order in a set does not depend on its address."""

    __hash__ = numbered


class _Future(asyncio.Future):
    """A future whose order in a set does not depend on its address."""

    __hash__ = numbered


class Process:
    """A unit that lives and dies as a whole. ``skew`` is the error of its clock, in seconds."""

    def __init__(self, loop: SimulatedLoop, name: str, *, skew: float = 0.0) -> None:
        self.loop = loop
        self.name = name
        self.skew = skew
        self.queue: deque[asyncio.Handle] = deque()
        self.is_dead = False
        self.is_paused = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.most = 100
        self.on_death: list[Callable[[], None]] = []
        self.state: dict[str, Any] = {}
        self._context = copy_context()
        self._context.run(PROCESS.set, self)
        self.number = len(loop.everyone)
        loop.processes.append(self)
        loop.everyone.append(self)

    def __repr__(self) -> str:
        return self.name

    def context(self) -> Context:
        """Return a context in which everything belongs to this process."""
        return self._context.copy()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task in this process."""
        return self.loop.create_task(work, context=self.context())

    def after(self, delay: float, function: Callable[..., object], *args: Any) -> None:
        """Call a function in this process later, if it still lives."""
        self.loop.call_later(delay, function, *args, context=self.context())

    def kill(self) -> None:
        """End the process as SIGKILL does: none of its code runs again."""
        if self.is_dead:
            return
        self.is_dead = True
        self.queue.clear()
        self.loop.processes.remove(self)
        for told in self.on_death:
            told()


PROCESS: ContextVar[Process] = ContextVar("process")


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The loop. ``path`` records the steps of each process, ``problems`` the unhandled errors."""

    def __init__(self, random: Random) -> None:
        _numbers[0] = count()
        self._random = random
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Process]] = []
        self._order = count()
        self._closed = False
        self._stopping = False
        self.steps = 0
        self.processes: list[Process] = []
        self.everyone: list[Process] = []
        self.problems: list[str] = []
        self.failure: Exception | None = None
        self.path = bytearray()
        self.world = Process(self, "world")

    # -- asyncio's interface ---------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def call_soon(self, callback, *args, context=None):
        if context is None:
            context = copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        process = context.get(PROCESS, self.world)
        if not (process.is_dead or self._closed):
            process.queue.append(handle)
        return handle

    def call_soon_threadsafe(self, callback, *args, context=None):
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):
        if context is None:
            context = copy_context()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        process = context.get(PROCESS, self.world)
        if not (process.is_dead or self._closed):
            heappush(self._timers, (when, next(self._order), handle, process))
        return handle

    def _timer_handle_cancelled(self, handle):
        pass

    def create_future(self):
        return _Future(loop=self)

    def create_task(self, coro, *, name=None, context=None):
        task = _Task(coro, loop=self, name=name, context=context)
        process = PROCESS.get(self.world) if context is None else context.get(PROCESS, self.world)
        tasks = process.tasks  # kept: a dead process does not even clean up
        if len(tasks) > process.most:
            tasks[:] = [task for task in tasks if not task.done()]
            process.most = 2 * len(tasks) + 100
        tasks.append(task)
        return task

    def run_in_executor(self, executor, func, *args):
        raise RuntimeError("there are no threads in a simulation")

    def call_exception_handler(self, context):
        process = PROCESS.get(self.world)
        if process.is_dead or self._closed:
            return
        self.problems.append(f"{process}: {context.get('message')}: {context.get('exception')!r}")

    # -- running -------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run until ``main`` ends, and return its result.

        Raises ``failure`` as soon as it is set, even if other code catches it, and ``Stuck``.
        """
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finalize)
        asyncio._set_running_loop(self)
        try:
            task = self.world.spawn(main)
            while not task.done():
                self._step()
            return task.result()
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _finalize(self, generator: Any) -> None:
        if not self._closed:
            self.create_task(generator.aclose())

    def _step(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            _, _, handle, process = heappop(timers)
            if not (handle._cancelled or process.is_dead):
                process.queue.append(handle)
        ready = [p for p in self.processes if p.queue and not p.is_paused]
        if not ready:
            if not timers:
                raise Stuck("nothing will ever happen, and something is waited for")
            self._now = max(self._now, timers[0][0])
            return
        process = ready[int(self._random.random() * len(ready))] if len(ready) > 1 else ready[0]
        handle = process.queue.popleft()
        if handle._cancelled:
            return
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Stuck(f"{MOST_STEPS} steps, and no end at {self._now:.3f} s")
        self.path.append(process.number & 255)
        self._now += HANDLE_SECONDS
        handle._run()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """End all remaining tasks silently: their actions have no effect."""
        self._closed = True
        asyncio._set_running_loop(self)
        try:
            while tasks := [task for process in self.everyone for task in process.tasks]:
                for process in self.everyone:
                    process.tasks.clear()
                    process.queue.clear()
                for task in tasks:
                    task._log_destroy_pending = False
                    with contextlib.suppress(BaseException):
                        task.get_coro().close()
            self._timers.clear()
        finally:
            asyncio._set_running_loop(None)
