"""The sleeps of one attempt, and its waits for events, during which its turn sleeps.

A sleeping turn is only a row in the store: its function ends, and runs again from the top when the
turn wakes up. The journal has the end of each wait and the value of each event, so finished waits
are replayed.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from parley.model.errors import A2AError, an
from parley.model.tasks import TaskState
from parley.store.events import StepResult
from parley.store.protocols.errors import StoreError
from parley.store.protocols.tables import MAX_WAITS, NEVER, check_key

if TYPE_CHECKING:
    from parley.engine.turn.attempt import Attempt

SHORT_MS = 1000
"""The longest sleep (ms) that keeps its coroutine: suspending the turn would cost more."""

SETTLE_ROUNDS = 20
"""The number of event loop iterations before a turn falls asleep, so that its other branches can
begin to wait too, or continue after their wait.
"""

_NULL = msgspec.Raw(b"null")


class _Wait(NamedTuple):
    wakes_at: int
    event: str


class _Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a finished wait: the event's value, or a timeout."""

    value: msgspec.Raw = _NULL
    timed_out: bool = False


_STEP: ContextVar[tuple[Waits | None, str]] = ContextVar("_STEP", default=(None, ""))
"""The running step, and the waits of its turn: another agent's turn may inherit the context."""


class Waits:
    """The unfinished waits of an attempt.

    The turn falls asleep when some of its branches wait and none is ``busy``. It wakes up at the
    earliest time among its waits, or when one of their events is complete.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._pending: dict[asyncio.Future[None], _Wait] = {}
        self._busy = 0
        self._rounds = 0
        self._next_round: asyncio.Handle | None = None
        self._sleeps = 0
        self._events: Counter[str] = Counter()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the turn awake while a branch does work that must not be repeated."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._settle()

    @contextmanager
    def step(self, key: str) -> Iterator[None]:
        """Keep the turn awake during a step. The step must not wait: it would wait for ever."""
        token = _STEP.set((self, key))
        try:
            with self.busy():
                yield
        finally:
            _STEP.reset(token)

    async def sleep(self, seconds: float, key: str | None, message: object) -> None:
        """Sleep for a number of seconds from the first call with this key in the task's life."""
        attempt = self._attempt
        if key is None:
            self._sleeps += 1
            key = str(self._sleeps)
        attempt.use(f"sleep:{key}", "sleep")
        if f"slept:{key}" in attempt.journal.results:
            return
        wakes_at = self._begin(f"sleep:{key}", seconds, message)
        left = wakes_at - attempt.runner.store.now()
        if left > SHORT_MS:
            await self._park(_Wait(wakes_at, ""))
        elif left > 0:
            await asyncio.sleep(left / 1000)
        attempt.journal.results[f"slept:{key}"] = _NULL
        attempt.writer().write(StepResult(key=f"slept:{key}", value=_NULL))

    async def event(self, name: str, timeout: float | None, message: object) -> Any:
        """Return the value of an event once it is complete.

        Raises ``TimeoutError`` after ``timeout`` seconds, also in every replay.
        """
        attempt, runner = self._attempt, self._attempt.runner
        check_key(name)
        self._events[name] += 1
        key = f"{self._events[name]}:{name}"
        known = attempt.journal.results.get(f"event:{key}")
        if known is None:
            with self.busy():
                wakes_at = self._begin(f"wait:{key}", timeout, message)
                value = await runner.store.event(runner.scope.agent, name)
                if value is not None or wakes_at <= runner.store.now():
                    known = await self._log_outcome(f"event:{key}", value)
        if known is None:
            await self._park(_Wait(wakes_at, name))
        assert known is not None, "a suspended turn runs again"
        outcome = msgspec.json.decode(known, type=_Outcome)
        if outcome.timed_out:
            raise TimeoutError(f"the event {name!r} was not completed within the time given")
        return msgspec.json.decode(outcome.value)

    async def park_until(self, event: str, wakes_at: int) -> NoReturn:
        """Wait until an event is complete, or a time (ms): the function ends here, and runs again.

        The event itself is not logged.
        """
        await self._park(_Wait(wakes_at, event))
        raise AssertionError("a suspended turn runs again")

    def _begin(self, key: str, seconds: float | None, message: object) -> int:
        """Return the end of a wait (ms). If it begins now, this is logged."""
        attempt = self._attempt
        begun = attempt.journal.results.get(key)
        if begun is not None:
            return msgspec.json.decode(begun, type=int)
        wakes_at = NEVER
        if seconds is not None:
            wakes_at = attempt.runner.store.now() + math.ceil(seconds * 1000)
        writer = attempt.working()
        if message is not None:
            writer.status(TaskState.WORKING, attempt.message(message))
        value = msgspec.Raw(msgspec.json.encode(wakes_at))
        attempt.journal.results[key] = value
        writer.write(StepResult(key=key, value=value))
        return wakes_at

    async def _log_outcome(self, key: str, value: bytes | None) -> msgspec.Raw:
        outcome = _Outcome(timed_out=True) if value is None else _Outcome(value=msgspec.Raw(value))
        known = msgspec.Raw(msgspec.json.encode(outcome))
        writer = self._attempt.writer()
        self._attempt.journal.results[key] = known
        writer.write(StepResult(key=key, value=known))
        await writer.flush()
        return known

    async def _park(self, wait: _Wait) -> None:
        """Wait until the turn falls asleep, which cancels this.

        Raises ``RuntimeError`` in a step, and ``ValueError`` for too many events.
        """
        waits, step = _STEP.get()
        if waits is self:
            raise RuntimeError(
                f"the step {step!r} sleeps or waits for an event, and a step must not wait; "
                "wait outside of the step"
            )
        if len(_events_of([wait, *self._pending.values()])) > MAX_WAITS:
            raise ValueError(f"a turn waits for {MAX_WAITS} events at once, at most")
        if (observed := self._attempt.observed) is not None:
            observed.add_event("wait", wait.event)
        never = asyncio.get_running_loop().create_future()
        self._pending[never] = wait
        self._settle()
        try:
            await never
        finally:
            self._pending.pop(never, None)

    def _settle(self) -> None:
        self._rounds = SETTLE_ROUNDS
        if self._next_round is None and self._pending and not self._attempt.finished:
            self._next_round = asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self._next_round = None
        if self._busy or not self._pending or self._attempt.finished:
            return
        self._rounds -= 1
        if self._rounds > 0:
            self._next_round = asyncio.get_running_loop().call_soon(self._round)
        else:
            self._fall_asleep()

    def _fall_asleep(self) -> None:
        waits = self._pending.values()
        wakes_at = min([wait.wakes_at for wait in waits])
        try:
            self._attempt.writer()  # writes the buffered chunks of streams
            self._attempt.runner.fall_asleep(wakes_at, sorted(_events_of(waits)))
        except A2AError as error:
            self._attempt.runner.abort(error)
        except StoreError:
            pass  # the writer has stopped, and the runner knows
        for never in list(self._pending):
            never.cancel()


def _events_of(waits: Iterable[_Wait]) -> set[str]:
    """Return the keys of the events among some waits."""
    return {wait.event for wait in waits if wait.event}


def seconds_of(duration: float | timedelta, what: str) -> float:
    """Return a duration in seconds. Raises ``TypeError``, ``ValueError``."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = float(duration)
    else:
        kind = type(duration).__qualname__
        raise TypeError(f"{what} is a timedelta or a number of seconds, not {an(kind)}")
    if not 0 <= seconds <= timedelta.max.total_seconds():
        raise ValueError(f"{what} is 0 seconds or more, and not for ever: not {duration!r}")
    return seconds
