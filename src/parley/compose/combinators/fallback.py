"""``fallback``: the next part is called when one gives no answer."""

from __future__ import annotations

from typing import Any

from parley.compose.calling import Calling
from parley.compose.combinators.decisions import check_decides, check_seconds
from parley.compose.combinators.retry import When
from parley.compose.composition import Composition
from parley.compose.drawing import IN, OUT, Edge
from parley.compose.outcome import Outcome, PartFailed, PartFailure
from parley.compose.parts import PartLike, parts_of
from parley.model.parts import Message


def gives_up(failure: PartFailure) -> bool:
    """Return whether the next part may help: always, unless the budget is spent."""
    return failure.reason != "budget"


def fallback(
    *parts: PartLike,
    when: When = gives_up,
    timeout: float | None = None,
    name: str = "",
    **options: Any,
) -> Composition:
    """Return an agent that calls its first part, and the next one if that gives no answer.

    A part gives none if it fails, rejects or refuses the message, cannot be reached, or takes
    longer than its seconds: ``timeout``, or those of ``part(..., timeout=...)``. Its task is
    canceled then. ``when`` is a function of the failure (``PartFailure``) that returns whether the
    next part is called; by default always, unless the budget is spent. If the last one gives no
    answer, the composition fails with what happened to each.

    All parts get the caller's message. Failures are in the log, so a further attempt goes on with
    the part that it was at. ``options`` are those of ``Composition`` and ``Agent``.
    """
    placed = parts_of(parts)
    if len(placed) < 2:
        raise ValueError("fallback has two or more parts: fallback(first, second)")
    check_seconds(timeout)
    check_decides(when, "when", "whether the next part is called")

    async def run(calling: Calling, message: Message) -> Outcome:
        failures: list[PartFailure] = []
        for part in placed:
            seconds = timeout if part.timeout is None else None
            outcome = await calling.call(part, message, key=part.key, timeout=seconds)
            if outcome.failure is None:
                return outcome
            failures.append(outcome.failure)
            if not when(outcome.failure):
                break
        raise PartFailed(*failures)

    edges = [Edge(IN, 0), *[Edge(index, OUT) for index in range(len(placed))]]
    edges += [Edge(index, index + 1, "no answer") for index in range(len(placed) - 1)]
    title = name or ", else ".join(part.name for part in placed)
    return Composition(title, placed, run, kind="fallback", **{"edges": edges, **options})
