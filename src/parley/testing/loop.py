"""Gives simulated processes their own time and their own death, on the loop that a test runs on.

A test runs on whatever loop its runner made: asyncio's or uvloop, of anyio or of pytest-asyncio. So
the loop is not replaced. While there are simulated processes, a few of its methods look at
``PROCESS`` first: for the test itself they do what they always do.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextvars import Context
from datetime import datetime
from typing import Any

from parley.testing.clock import Clock
from parley.testing.processes import PROCESS, Process

QUIET_PASSES = 4
"""How many passes of the loop in which nothing happens make a system that has settled."""

MAX_PASSES = 200_000
"""How many passes of the loop a system may need to settle."""

THREAD_WAIT = 0.0005
"""Seconds of real time between two looks at threads that work."""

FUNCTION_SECONDS = 0.1
"""Seconds of real time that a system may be idle, but for plain functions in threads, until it
counts as settled: such a function may wait for something that the test does next.
"""

_METHODS = (
    "call_soon",
    "call_soon_threadsafe",
    "call_later",
    "call_at",
    "time",
    "create_task",
    "run_in_executor",
)
_ATTRIBUTE = "_parley_testing"
_HOOK = "note_generator"


class NotSettled(RuntimeError):
    """The agents do not come to rest: something runs without ever waiting."""


class SimulatedLoop:
    """One event loop, as simulated processes share it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.activity = 0
        self.in_executor = 0
        self._loop = loop
        self._users = 0
        self._real = {name: getattr(loop, name) for name in _METHODS}

    @classmethod
    def of_running(cls) -> SimulatedLoop:
        """Return that of the running loop, with one more user."""
        loop = asyncio.get_running_loop()
        found: SimulatedLoop | None = getattr(loop, _ATTRIBUTE, None)
        if found is None:
            found = cls(loop)
            setattr(loop, _ATTRIBUTE, found)
            found._install()
        found._users += 1
        found.hook_generators()
        return found

    def leave(self) -> None:
        """Give the loop its methods back, if this was the last user."""
        self._users -= 1
        if self._users:
            return
        for name in (*_METHODS, _ATTRIBUTE):
            vars(self._loop).pop(name, None)

    def hook_generators(self) -> None:
        """Keep the asynchronous generators of processes out of the hands of the loop.

        At its end it would close them, also those of dead processes.
        """
        first = sys.get_asyncgen_hooks().firstiter
        if getattr(first, "__name__", "") == _HOOK:
            return

        def note_generator(generator: AsyncGenerator[Any, Any]) -> None:
            process = PROCESS.get()
            if process is not None:
                process.adopt_generator(generator)
            elif first is not None:
                first(generator)

        sys.set_asyncgen_hooks(firstiter=note_generator)

    def clock(self, start: datetime | None = None) -> Clock:
        """Return a new clock."""
        real = self._real
        return Clock(real["time"], real["call_at"], self._loop.call_soon, start=start)

    async def settle(
        self, threads: Iterable[Callable[[], bool]], functions: Iterable[Callable[[], bool]]
    ) -> None:
        """Wait until nothing happens on the loop, and nothing can but by time or by the test.

        ``threads`` say whether threads work whose end is awaited, ``functions`` whether plain
        functions of agents run. Raises ``NotSettled``.
        """
        quiet, waited = 0, 0.0
        for _ in range(MAX_PASSES):
            before = self.activity
            await asyncio.sleep(0)
            if self.activity > before + 1:  # more than this task itself
                quiet, waited = 0, 0.0
                continue
            quiet += 1
            if quiet < QUIET_PASSES:
                continue
            is_calling = bool(self.in_executor) or any([is_busy() for is_busy in functions])
            is_calling = is_calling and waited < FUNCTION_SECONDS
            if not (is_calling or any([is_busy() for is_busy in threads])):
                return
            await asyncio.sleep(THREAD_WAIT)
            waited += THREAD_WAIT
            quiet = 0
        raise NotSettled(
            "the agents do not come to rest: something runs on the event loop without ever "
            "waiting, such as a loop around asyncio.sleep(0)"
        )

    # -- what the loop does instead ------------------------------------------------------------

    def _install(self) -> None:
        real = self._real
        call_soon, call_soon_threadsafe = real["call_soon"], real["call_soon_threadsafe"]
        call_later, call_at, time = real["call_later"], real["call_at"], real["time"]
        create_task, run_in_executor = real["create_task"], real["run_in_executor"]

        def belonging_to(context: Context | None) -> Process | None:
            return PROCESS.get() if context is None else context.get(PROCESS)

        def soon(schedule: Callable[..., Any]) -> Callable[..., Any]:
            def call(
                callback: Callable[..., object], *args: Any, context: Context | None = None
            ) -> Any:
                self.activity += 1
                process = belonging_to(context)
                if process is None:
                    return schedule(callback, *args, context=context)
                return schedule(process.call, callback, *args, context=context)

            return call

        def later(
            delay: float,
            callback: Callable[..., object],
            *args: Any,
            context: Context | None = None,
        ) -> Any:
            process = belonging_to(context)
            if process is None:
                return call_later(delay, callback, *args, context=context)
            when = process.clock.time() + delay
            return process.clock.at(when, callback, args, context, process)

        def at(
            when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
        ) -> Any:
            process = belonging_to(context)
            if process is None:
                return call_at(when, callback, *args, context=context)
            return process.clock.at(when, callback, args, context, process)

        def now() -> float:
            process = PROCESS.get()
            found: float = time() if process is None else process.clock.time()
            return found

        def task(
            work: Any, *args: Any, context: Context | None = None, **options: Any
        ) -> asyncio.Task[Any]:
            if context is not None:
                options["context"] = context
            made: asyncio.Task[Any] = create_task(work, *args, **options)
            process = belonging_to(context)
            if process is not None:
                process.adopt(made)
            return made

        def executed(executor: Any, function: Callable[..., Any], *args: Any) -> Any:
            future = run_in_executor(executor, function, *args)
            if PROCESS.get() is not None:
                self.in_executor += 1
                future.add_done_callback(left, context=Context())
            return future

        def left(_: object) -> None:
            self.in_executor -= 1

        replaced: dict[str, Callable[..., Any]] = {
            "call_soon": soon(call_soon),
            "call_soon_threadsafe": soon(call_soon_threadsafe),
            "call_later": later,
            "call_at": at,
            "time": now,
            "create_task": task,
            "run_in_executor": executed,
        }
        for name, function in replaced.items():
            setattr(self._loop, name, function)
