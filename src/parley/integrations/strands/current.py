"""The run of a turn in which tools and nodes of Strands are called."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from parley.integrations.strands.interrupts import Interrupts


class CurrentRun:
    """What remote tools and nodes need to know of the run of a turn."""

    def __init__(self, interrupts: Interrupts) -> None:
        self.interrupts = interrupts
        self._calls: Counter[str] = Counter()

    def call_key(self, said: str) -> str:
        """Return a key for a call of a remote node: by what is said, and how often before."""
        digest = hashlib.sha256(said.encode()).hexdigest()[:24]
        self._calls[digest] += 1
        return f"strands:{digest}:{self._calls[digest]}"


_RUN: ContextVar[CurrentRun | None] = ContextVar("parley_strands_run", default=None)


def current_run() -> CurrentRun | None:
    """Return the run of a turn, ``None`` outside of one."""
    return _RUN.get()


@contextmanager
def running(run: CurrentRun) -> Iterator[None]:
    """Let ``current_run`` return this run."""
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)
