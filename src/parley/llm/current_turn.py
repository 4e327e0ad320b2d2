"""The turn that runs now, for code that a framework calls without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from parley.agent.turn import Turn

_TURN: ContextVar[Turn | None] = ContextVar("parley_current_turn", default=None)


def current_turn() -> Turn | None:
    """Return the turn in which a framework or a model runs, ``None`` outside of one."""
    return _TURN.get()


@contextmanager
def within(turn: Turn) -> Iterator[None]:
    """Let ``current_turn`` return this turn, here and in tasks that are started here."""
    token = _TURN.set(turn)
    try:
        yield
    finally:
        _TURN.reset(token)
