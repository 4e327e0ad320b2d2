"""Verdicts about credentials, kept for a few seconds, so that not every request asks for one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MAX_VERDICTS = 10_000
"""How many good verdicts are kept, and how many bad ones."""

MAX_SECONDS = 300.0


class _Unknown:
    """There is no verdict yet."""


UNKNOWN: Final = _Unknown()


def checked_seconds(value: float) -> float:
    """Return how long verdicts are kept. Raises ``ValueError``."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"cache_seconds is 0 (no cache) to {MAX_SECONDS:g}, not {value!r}")
    return float(value)


class VerdictCache(Generic[T]):
    """Keeps what was found out about credentials, by a key of theirs; ``None`` is a bad verdict.

    Bad verdicts have room of their own: a flood of wrong credentials pushes out no good ones. Of
    several requests at once for the same key one asks, and the others get its verdict. Times are
    in seconds; a verdict counts from the moment when it was asked for.
    """

    def __init__(self, seconds: float, size: int = MAX_VERDICTS) -> None:
        self._seconds = seconds
        self._size = size
        self._good: dict[Hashable, tuple[float, T]] = {}
        self._bad: dict[Hashable, float] = {}
        # By event loop and key: a scheme may be used by several servers.
        self._asked: dict[Hashable, asyncio.Future[T | None]] = {}

    def get(self, key: Hashable, now: float) -> T | _Unknown | None:
        """Return the verdict, or ``UNKNOWN`` if there is none that is fresh."""
        found = self._good.get(key)
        if found is not None and 0 <= now - found[0] < self._seconds:
            return found[1]
        at = self._bad.get(key)
        if at is not None and 0 <= now - at < self._seconds:
            return None
        return UNKNOWN

    async def find(
        self, key: Hashable, now: float, ask: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        """Return the verdict; ``ask`` finds it out if there is none that is fresh."""
        while True:
            found = self.get(key, now)
            if not isinstance(found, _Unknown):
                return found
            other = self._asked.get((asyncio.get_running_loop(), key))
            if other is None:
                return await self._ask(key, now, ask)
            await asyncio.wait((other,))
            if not other.cancelled():
                return other.result()

    def forget(self, key: Hashable) -> None:
        """Forget a verdict, also one that is being found out on this event loop."""
        self._good.pop(key, None)
        self._bad.pop(key, None)
        self._asked.pop((asyncio.get_running_loop(), key), None)

    async def _ask(
        self, key: Hashable, now: float, ask: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T | None] = loop.create_future()
        name = (loop, key)
        self._asked[name] = answer
        try:
            verdict = await ask()
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except BaseException as error:
            answer.set_exception(error)
            answer.exception()  # that nobody else waits for it is no warning
            raise
        else:
            answer.set_result(verdict)
            if self._asked.get(name) is answer and self._seconds:
                self._keep(key, now, verdict)
            return verdict
        finally:
            if self._asked.get(name) is answer:
                del self._asked[name]

    def _keep(self, key: Hashable, now: float, verdict: T | None) -> None:
        self._good.pop(key, None)
        self._bad.pop(key, None)
        if verdict is None:
            self._bad[key] = now
            if len(self._bad) > self._size:
                del self._bad[next(iter(self._bad))]
        else:
            self._good[key] = (now, verdict)
            if len(self._good) > self._size:
                del self._good[next(iter(self._good))]
