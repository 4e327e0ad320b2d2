"""Retries of calls: which errors, how often, and after which pause."""

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
"""In seconds: a longer pause is a warning, because a waiting user would wonder."""

TRANSIENT_STATUSES = frozenset({429, 502, 503, 504})
# A longer ``Retry-After`` goes to the caller as an error instead of being waited for.
LONGEST_WAIT = 60.0


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The retry policy of a connection.

    ``calls`` is how often one call is repeated, ``streams`` how often in a row a cut stream is
    taken up again without anything new coming of it. Pauses grow from ``first`` seconds twofold
    up to ``limit``; chance takes up to half of each away, so that callers spread out.
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

    A call that is not ``safe`` to do twice is repeated only if it was never sent, or refused with
    the time at which there is room for it.
    """
    if isinstance(error, Unreachable):
        return not isinstance(error, Untrusted)
    if _is_limited(error):
        return True  # it was refused before anything was done
    if not safe:
        return False
    if isinstance(error, UnexpectedStatus):
        return error.status in TRANSIENT_STATUSES
    return isinstance(error, Disconnected | OverloadedError)


def _is_limited(error: Exception) -> bool:
    """Return whether a limit refused a call and said until when.

    Refused credentials that came too often are no such limit: others are needed, not time.
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

    With ``await_restart`` an agent that was reached and then lost gets the time to restart, as in
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
