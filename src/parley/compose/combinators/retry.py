"""``retry``: a part is called again after a failure that may pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from parley.compose.calling import Calling
from parley.compose.combinators.decisions import check_decides
from parley.compose.composition import Composition
from parley.compose.drawing import IN, OUT, Edge
from parley.compose.outcome import Outcome, PartFailure
from parley.compose.parts import PartLike, parts_of
from parley.engine.turn.waits import seconds_of
from parley.model.parts import Message

Backoff = float | timedelta | Sequence[float | timedelta]
"""How long to wait: before the second call, doubled before each further one; or each time."""

When = Callable[[PartFailure], bool]
"""Whether something is to be done about a failure."""

MAX_WAIT = 3600.0
"""The longest wait (s) that doubling leads to."""

MAY_PASS = frozenset({"OVERLOADED", "TOO_MANY_REQUESTS"})
"""The codes of refusals that say: later."""


def may_pass(failure: PartFailure) -> bool:
    """Return whether a failure may be over after a while.

    That is an agent that could not be reached, that did not answer in time, or that refused the
    message because it has too much to do. What an agent answered, also that it failed, stays so.
    """
    return failure.reason in ("unreachable", "timeout") or failure.code in MAY_PASS


def retry(
    part: PartLike,
    *,
    attempts: int = 3,
    backoff: Backoff = 1.0,
    when: When = may_pass,
    name: str = "",
    **options: Any,
) -> Composition:
    """Return an agent that calls a part, and calls it again if a failure may pass.

    It is called up to ``attempts`` times, with waits between: ``backoff`` seconds, twice that, and
    so on, or those of a list. ``when`` is a function of the failure (``PartFailure``) that returns
    whether to call again; by default ``may_pass``. An answer is never asked for again, and neither
    is the task of a call that ran out of time left running.

    Attempts and waits are in the log: a crash repeats none of them, and a wait of a day costs a
    row. ``options`` are those of ``Composition`` and ``Agent``.

    Raises ``ValueError`` for ``attempts`` below 2 and for a ``backoff`` that is no duration.
    """
    check_decides(when, "when", "whether to call again")
    if attempts < 2:
        raise ValueError(f"attempts counts the first call too, so it is 2 or more, not {attempts}")
    waits = _waits(backoff, attempts - 1)
    placed = parts_of([part])
    (called,) = placed

    async def run(calling: Calling, message: Message) -> Outcome:
        number = 1
        while True:
            outcome = await calling.call(
                called, message, key=f"{called.key}#{number}", context_key=called.key
            )
            if outcome.failure is None or number == attempts or not when(outcome.failure):
                return outcome.required()
            await calling.turn.sleep(waits[number - 1], key=f"retry:{number}")
            number += 1

    edges = [Edge(IN, 0), Edge(0, 0, f"again, up to {attempts} times"), Edge(0, OUT)]
    title = name or f"{called.name}, with retries"
    return Composition(title, placed, run, kind="retry", **{"edges": edges, **options})


def _waits(backoff: Backoff, count: int) -> list[float]:
    if isinstance(backoff, Sequence):
        waits = [seconds_of(each, "backoff") for each in backoff]
        if not waits:
            raise ValueError("backoff is a duration, or a list with one or more of them")
        return [waits[min(index, len(waits) - 1)] for index in range(count)]
    first = seconds_of(backoff, "backoff")
    return [min(first * 2**index, max(first, MAX_WAIT)) for index in range(count)]
