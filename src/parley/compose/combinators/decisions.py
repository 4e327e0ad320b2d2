"""Functions by which an author decides for a combinator: plain, and called on the event loop."""

from __future__ import annotations

import inspect
from typing import Any


def check_decides(function: Any, option: str, returns: str) -> None:
    """Refuse what cannot decide at once. Raises ``TypeError``."""
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if not callable(function) or inspect.iscoroutinefunction(target):
        raise TypeError(
            f"{option} is a plain function that returns {returns}, not {function!r}: a coroutine "
            "would count as true; have an agent decide with route(agent, ...)"
        )


def check_failures(failures: str, at_least: int) -> None:
    """Refuse a rule for failures that there is not. Raises ``ValueError``."""
    if failures not in ("fail", "partial"):
        raise ValueError(f"failures is 'fail' or 'partial', not {failures!r}")
    if failures == "fail" and at_least != 1:
        raise ValueError("at_least goes with failures='partial': with 'fail' all have to answer")


def check_seconds(timeout: float | None) -> None:
    """Refuse a time limit that is none. Raises ``ValueError``."""
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is a positive number of seconds, not {timeout!r}")
