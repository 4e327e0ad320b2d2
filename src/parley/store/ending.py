"""Ends asyncio tasks reliably. No I/O; any room may use it.

One cancellation is not always enough: ``asyncio.wait_for``, which drivers use, drops one that
arrives together with the result (Python before 3.12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def end(tasks: Iterable[asyncio.Future[Any]], *, grace: float = 0.0) -> None:
    """Give tasks ``grace`` seconds to end, then cancel them until they have ended."""
    left = [task for task in tasks if not task.done()]
    if left and grace > 0:
        await asyncio.wait(left, timeout=grace)
        left = [task for task in left if not task.done()]
    while left:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)
        left = [task for task in left if not task.done()]


async def see_through(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end, even if the caller is cancelled meanwhile; return its result.

    Use it to open and close: nothing could close what is half open. Raises the cancellation after
    the work has ended.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None or task.cancelled() or task.exception() is not None:
        return task.result()
    raise cancelled


def check_cancelled() -> None:
    """Raise ``CancelledError`` if this task was canceled and a driver dropped it.

    The tasks of a group call this: the group cancels each once.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
