"""The current turn, for code that a framework calls without a turn argument."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from parley.agent.turn import Turn

_TURN: ContextVar[Turn | None] = ContextVar("parley_current_turn", default=None)


def current_turn() -> Turn | None:
    """Return the turn in which a framework or a model runs, ``None`` outside a turn."""
    return _TURN.get()


@contextmanager
def within(turn: Turn) -> Iterator[None]:
    """Make ``current_turn`` return this turn, here and in tasks started here."""
    token = _TURN.set(turn)
    try:
        yield
    finally:
        _TURN.reset(token)
