"""Ending background tasks for good.

Once is not always enough to cancel one: ``asyncio.wait_for``, which drivers use, forgets a
cancellation that comes at the moment at which what it waits for is there (Python before 3.12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended."""
    left = [task for task in tasks if not task.done()]
    while left:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)
        left = [task for task in left if not task.done()]


def check_cancelled() -> None:
    """Raise ``CancelledError`` if this task was canceled, though a driver forgot it.

    A task of a group needs to look itself: the group cancels it once.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
