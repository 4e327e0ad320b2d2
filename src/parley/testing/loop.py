"""Simulated processes: their time, which tests move, and their death, as after ``kill -9``.

A test runs on the event loop of its runner: asyncio's or uvloop, of anyio or of pytest-asyncio. So
the loop is not replaced. While simulated processes exist, a few of its methods check ``PROCESS``
first; outside a simulated process they behave as before.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextvars import Context, ContextVar, copy_context
from datetime import UTC, datetime
from itertools import count
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

# -- clock ------------------------------------------------------------------------------------
#
# The time of simulated processes: it flows as real time does, and tests can move it.


BACKGROUND = (
    "parley.engine.maintenance",
    "parley.host.",
    "parley.model.concurrency",
    "parley.server.",
    "parley.store.",
)
"""The modules whose timers are polls: a move of the time does not stop at them."""

CLEAN_AFTER = 1000
"""The number of cancelled timers a clock holds before it drops them."""


class Owner(Protocol):
    """The owner of timers: a process. Timers of a dead owner never fire."""

    is_dead: bool


class Timer:
    """A function call at a time of the clock, unless it is cancelled: an event loop's timer handle.

    ``span`` is the delay with which the timer was set; it is 0 for a background timer, which polls
    at an interval.
    """

    def __init__(
        self,
        when: float,
        span: float,
        call: tuple[Callable[..., object], tuple[Any, ...]],
        context: Context,
        owner: Owner,
    ) -> None:
        self.span = span
        self.call: tuple[Callable[..., object], tuple[Any, ...]] | None = call
        self.context = context
        self._when = when
        self._owner = owner

    def cancel(self) -> None:
        """Cancel the call."""
        self.call = None

    def cancelled(self) -> bool:
        """Return whether the timer was cancelled or has fired."""
        return self.call is None or self._owner.is_dead

    def when(self) -> float:
        """Return the time of the call."""
        return self._when

    def fire(self) -> None:
        """Call the function now, unless the timer was cancelled."""
        call, self.call = self.call, None
        if call is not None and not self._owner.is_dead:
            function, args = call
            function(*args)


class Clock:
    """A clock that runs with the event loop's clock; ``move`` puts it forward.

    Timers fire in the order of their times. ``real_time`` and ``call_at`` are the event loop's own
    methods; ``call_soon`` schedules the calls that are due.
    """

    def __init__(
        self,
        real_time: Callable[[], float],
        call_at: Callable[..., asyncio.TimerHandle],
        call_soon: Callable[..., object],
        *,
        start: datetime | None = None,
    ) -> None:
        self._real_time = real_time
        self._call_at = call_at
        self._call_soon = call_soon
        self._made_in = copy_context()
        self._ahead = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._armed: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._begun = real_time()
        epoch = time.time() if start is None else start.timestamp()
        self._epoch = int(epoch * 1000)

    def time(self) -> float:
        """Return the time in seconds since an arbitrary moment, as ``loop.time()`` does."""
        return self._real_time() + self._ahead

    def milliseconds(self) -> int:
        """Return the time in ms since 1970, as stores do."""
        return self._epoch + int((self.time() - self._begun) * 1000)

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.fromtimestamp(self.milliseconds() / 1000, UTC)

    def at(
        self,
        when: float,
        function: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        owner: Owner,
    ) -> Timer:
        """Return a timer that calls a function at a time of this clock."""
        made = copy_context() if context is None else context
        span = 0.0 if _is_background(function) else max(1e-6, when - self.time())
        timer = Timer(when, span, (function, args), made, owner)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        self._arm()
        return timer

    def move(self, seconds: float) -> None:
        """Put the clock forward, and fire the timers that are due."""
        self._ahead += max(0.0, seconds)
        self._fire()

    def upcoming(self, span: float, until: float) -> float | None:
        """Return the time of the first timer up to ``until`` that was set ``span`` ahead or more.

        ``None`` without such a timer. Background timers do not count.
        """
        whens = [t.when() for t in self._live() if t.span > span and t.when() <= until]
        return min(whens, default=None)

    def stop(self) -> None:
        """Fire no more timers."""
        self._timers.clear()
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None

    def _live(self) -> Iterator[Timer]:
        return (timer for _, _, timer in self._timers if not timer.cancelled())

    def _arm(self) -> None:
        """Set a timer of the event loop for the first timer of this clock."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if len(self._timers) > CLEAN_AFTER:
            live = [entry for entry in self._timers if not entry[2].cancelled()]
            if len(live) < len(self._timers) / 2:
                self._timers = live
                heapq.heapify(live)
        if not self._timers:
            return
        when = self._timers[0][0] - self._ahead
        if self._armed is not None:
            if self._armed_for <= when:
                return  # at worst it fires too early and is armed again
            self._armed.cancel()
        self._armed_for = when
        # Not in the simulated process that sets the timer: its time differs from the loop's time.
        self._armed = self._made_in.copy().run(self._call_at, when, self._fire)

    def _fire(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        now = self.time() + 1e-9
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled():
                self._call_soon(timer.fire, context=timer.context)
        self._arm()


def _is_background(function: Callable[..., object]) -> bool:
    """Return whether a background module sets this timer, judged by the running task if there is
    one.

    In a task the direct caller is asyncio, as in ``asyncio.sleep``.
    """
    task = asyncio.current_task()
    if task is None:
        module = getattr(function, "__module__", None) or ""
    else:
        frame = getattr(task.get_coro(), "cr_frame", None)
        module = "" if frame is None else frame.f_globals.get("__name__", "")
    return module.startswith(BACKGROUND)


T = TypeVar("T")

PROCESS: ContextVar[Process | None] = ContextVar("parley_testing_process", default=None)
"""The simulated process of the running code; ``None`` in the test itself."""


class Process:
    """A simulated process: its tasks, callbacks and timers.

    Whatever the process starts belongs to it, because context variables are inherited. After
    ``kill`` nothing of it runs: no ``finally``, no ``except``, no line. So the objects of its tasks
    are never freed.
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
        """Call a function that the event loop runs for this process, unless the process is dead."""
        if not self.is_dead:
            function(*args)

    def add_task(self, task: asyncio.Task[Any]) -> None:
        """Record a task that began in this process."""
        if self.is_dead:
            self._drop(task)
        else:
            self._tasks.add(task)

    def add_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Record an asynchronous generator that began in this process."""
        self._generators.add(generator)

    def kill(self) -> None:
        """End the process as SIGKILL does: none of its code ever runs again. Idempotent."""
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
        # Without this, ``asyncio.all_tasks`` lists the dead task, and a caller waits for it for
        # ever.
        asyncio._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        _keep_for_ever(task)


def _keep_for_ever(remains: object) -> None:
    """Never free the objects of a dead process: that would run its ``finally`` blocks."""
    if sys.implementation.name == "cpython":
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(remains))  # also while the interpreter ends
    else:
        _REMAINS.append(remains)


_REMAINS: list[object] = []


QUIET_PASSES = 4
"""The number of idle passes of the event loop after which the agents count as settled."""

MAX_PASSES = 200_000
"""The most passes of the event loop until the agents must have settled."""

THREAD_WAIT = 0.0005
"""Seconds of real time between two checks of busy threads."""

FUNCTION_SECONDS = 0.1
"""Seconds of real time after which agents count as settled although plain functions still run in
threads: such a function may wait for the next action of the test.
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
    """The agents do not become idle: some code runs without ever waiting."""


class SimulatedLoop:
    """An event loop shared by simulated processes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.activity = 0
        self.in_executor = 0
        self._loop = loop
        self._users = 0
        self._real = {name: getattr(loop, name) for name in _METHODS}

    @classmethod
    def of_running(cls) -> SimulatedLoop:
        """Return the instance for the running loop, and count one more user."""
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
        """Restore the methods of the event loop, if this was the last user."""
        self._users -= 1
        if self._users:
            return
        for name in (*_METHODS, _ATTRIBUTE):
            vars(self._loop).pop(name, None)

    def hook_generators(self) -> None:
        """Keep the asynchronous generators of simulated processes out of the event loop's set.

        At its end the loop would close them, also the generators of dead processes.
        """
        first = sys.get_asyncgen_hooks().firstiter
        if getattr(first, "__name__", "") == _HOOK:
            return

        def note_generator(generator: AsyncGenerator[Any, Any]) -> None:
            process = PROCESS.get()
            if process is not None:
                process.add_generator(generator)
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
        """Wait until all agents are idle, and only time or the test can cause more work.

        ``threads`` return whether awaited threads are busy, ``functions`` whether plain functions
        of agents run in threads. Raises ``NotSettled``.
        """
        quiet, waited = 0, 0.0
        for _ in range(MAX_PASSES):
            before = self.activity
            await asyncio.sleep(0)
            if self.activity > before + 1:  # more activity than this task's own
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
            "the agents do not become idle: some code runs on the event loop without ever "
            "waiting, such as a loop around asyncio.sleep(0)"
        )

    # -- replaced methods of the event loop --------------------------------------------------------

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
                process.add_task(made)
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
