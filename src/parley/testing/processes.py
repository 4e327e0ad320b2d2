"""Simulated processes: what runs in one dies with it, as after ``kill -9``."""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar
from weakref import WeakSet

from parley.testing.clock import Clock

T = TypeVar("T")

PROCESS: ContextVar[Process | None] = ContextVar("parley_testing_process", default=None)
"""The simulated process that runs now; none is the test's own."""


class Process:
    """Everything that runs in one simulated process: tasks, callbacks, timers.

    What is started in it belongs to it, because context variables are inherited. After ``kill``
    nothing of it runs: no ``finally``, no ``except``, no line. So what its tasks hold is never
    freed.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.is_dead = False
        self.on_death: list[Callable[[], None]] = []
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()
        self._context = copy_context()
        self._context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"Process({self.name!r}{', dead' * self.is_dead})"

    def context(self) -> Context:
        """Return a context whose tasks belong to this process."""
        return self._context.copy()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this process, and return its result."""
        loop = asyncio.get_running_loop()
        return await loop.create_task(work, context=self.context())

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function, which the event loop does for this process, while it lives."""
        if not self.is_dead:
            function(*args)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Note a task that began in this process."""
        if self.is_dead:
            self._drop(task)
        else:
            self._tasks.add(task)

    def adopt_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Note an asynchronous generator that began in this process."""
        self._generators.add(generator)

    def kill(self) -> None:
        """End the process as SIGKILL does: nothing of it ever runs again. Idempotent."""
        if self.is_dead:
            return
        self.is_dead = True
        for task in list(self._tasks):
            if not task.done():
                self._drop(task)
        for generator in list(self._generators):
            _keep_for_ever(generator)
        for heard in self.on_death:
            heard()

    def _drop(self, task: asyncio.Task[Any]) -> None:
        # Else ``asyncio.all_tasks`` has it, and who waits for those waits for ever.
        asyncio._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        _keep_for_ever(task)


def _keep_for_ever(remains: object) -> None:
    """Never free what a dead process left: that would run its ``finally`` blocks."""
    if sys.implementation.name == "cpython":
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(remains))  # also while the interpreter ends
    else:
        _REMAINS.append(remains)


_REMAINS: list[object] = []
