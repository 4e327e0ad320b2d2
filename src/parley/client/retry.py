"""Retries of calls: the errors that allow them, their number, and the pauses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from parley.client.errors import ClientError, Disconnected, UnexpectedStatus, Unreachable, Untrusted
from parley.model.backoff import Backoff
from parley.model.errors import A2AError, OverloadedError, TooManyRequestsError

T = TypeVar("T")
logger = logging.getLogger(__name__)

LONG_PAUSE = 5.0
"""In seconds. A longer pause is logged as a warning, because a user may be waiting."""

TRANSIENT_STATUSES = frozenset({429, 502, 503, 504})
# A longer ``Retry-After`` is not waited for: the caller gets the error.
LONGEST_WAIT = 60.0


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The retry policy of a connection.

    ``calls`` is the maximum number of repetitions of a call, ``streams`` the maximum number of
    consecutive resumptions of a broken stream without a new event. Pauses double from ``first`` up
    to ``limit`` seconds; up to half of each is removed at random, so that callers spread out.
    """

    calls: int = 3
    streams: int = 12
    first: float = 0.2
    limit: float = 5.0

    def pause(self, nth: int) -> float:
        """Return the backoff before the ``nth`` repetition (from 0), in seconds."""
        return Backoff(self.first, self.limit, jitter=(0.5, 1.0)).delay(nth + 1)


def is_worth_repeating(error: Exception, *, safe: bool) -> bool:
    """Return whether a repetition of the call may succeed.

    A call that is not ``safe`` to repeat is repeated only if it was never sent, or rejected with
    the time of the next possible attempt.
    """
    if isinstance(error, Unreachable):
        return not isinstance(error, Untrusted)
    if _is_limited(error):
        return True  # it was rejected before processing
    if not safe:
        return False
    if isinstance(error, UnexpectedStatus):
        return error.status in TRANSIENT_STATUSES
    return isinstance(error, Disconnected | OverloadedError)


def _is_limited(error: Exception) -> bool:
    """Return whether a limit rejected a call and named the time of the next attempt.

    The limit on failed authentications does not count: it needs other credentials, not time.
    """
    if isinstance(error, UnexpectedStatus):
        return error.status == 429 and error.retry_after is not None
    if not isinstance(error, TooManyRequestsError) or error.retry_after is None:
        return False
    return "policy" in error.metadata


async def repeat(
    call: Callable[[], Awaitable[T]],
    retry: Retry,
    *,
    safe: bool,
    name: str,
    await_restart: bool = False,
) -> T:
    """Call until it succeeds, ``retry`` is used up, or another attempt cannot help.

    With ``await_restart`` an agent whose connection was lost gets the time to restart, as in
    streams.
    """
    nth = 0
    limit = retry.calls
    while True:
        try:
            return await call()
        except (A2AError, ClientError) as error:
            if await_restart and not isinstance(error, Unreachable):
                limit = max(limit, retry.streams)
            wished: float | None = getattr(error, "retry_after", None)
            if (
                nth >= limit
                or not is_worth_repeating(error, safe=safe)
                or (wished or 0.0) > LONGEST_WAIT
            ):
                raise
            pause = retry.pause(nth) if wished is None else wished
            nth += 1
            level = logging.INFO if pause < LONG_PAUSE else logging.WARNING
            logger.log(level, "%s: %s; trying again in %.2f s (%d)", name, error, pause, nth)
        await asyncio.sleep(pause)
