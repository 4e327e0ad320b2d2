"""Combinators whose parts work one after another: sequence, route, retry and fallback."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from parley.compose.calling import Calling
from parley.compose.composition import Composition, check_decides, check_seconds
from parley.compose.drawing import IN, OUT, Edge
from parley.compose.outcome import Outcome, PartFailed, PartFailure
from parley.compose.parts import CompositionPart, PartLike, part, parts_of
from parley.engine.turn.waits import seconds_of
from parley.model.parts import Message


def sequence(*parts: PartLike, name: str = "", **options: Any) -> Composition:
    """Return an agent that calls its parts one after another.

    The first part gets the caller's message, each later part the answer of the part before it:
    text, data and files. The last answer is the answer of the composition, and its artifacts are
    sent as they arrive. A failed part fails the composition, with the name of the part and the
    reason.

    See ``Composition`` and ``Agent`` for the ``options``.
    """
    placed = parts_of(parts)

    async def run(calling: Calling, message: Message) -> Outcome:
        given: Message | Outcome = message
        for each in placed:
            is_last = each is placed[-1]
            given = (await calling.call(each, given, key=each.key, result=is_last)).required()
        assert isinstance(given, Outcome)
        return given

    names = [part.name for part in placed]
    title = name or (", then ".join(names) if len(names) != 1 else f"{names[0]}, alone")
    return Composition(title, placed, run, kind="sequence", **options)


Choose = PartLike
"""Chooses a part: a function of the message's text that returns a part's name, or an agent."""

CHOSEN_FIELDS = ("part", "route", "name", "intent")
"""The fields that may have the name of the chosen part, in an answer with data."""


def route(
    choose: Choose,
    *parts: PartLike,
    default: str = "",
    read: Callable[[Outcome], str] | None = None,
    name: str = "",
    **options: Any,
) -> Composition:
    """Return an agent that passes each message to a part, and returns the part's answer.

    ``choose`` is called first: a function of the message's text that returns the name of a part, or
    an agent that answers with the name (as text, or as data with a ``part``). The names come from
    ``part(..., name=...)``, or from the agents; upper and lower case are equal. ``read`` extracts
    the name from an answer in another form. The choice is stored in the log: a later attempt does
    not choose again.

    ``default`` is the part for messages without a choice (``None``, or an empty text). The name of
    an unknown part fails the composition, with an error that lists the parts.

    See ``Composition`` and ``Agent`` for the ``options``. Raises ``ValueError`` for a ``default``
    that names no part.
    """
    placed = parts_of(parts)
    if not placed:
        raise ValueError("route chooses among parts: route(choose, billing, support)")
    *placed_parts, chooser = parts_of([*placed, part(choose)])
    if read is not None:
        check_decides(read, "read", "the name of a part")
    by_name: dict[str, CompositionPart] = {}
    for each in placed_parts:
        same = by_name.setdefault(_plain(each.name), each)
        if same is not each or not _plain(each.name):
            raise ValueError(
                f"a choice cannot distinguish {each.name!r} from {same.name!r}: only the words of "
                "a name count, in any case; give it another name with part(..., name=...)"
            )
    names = ", ".join(each.name for each in placed_parts)
    fallback = by_name.get(_plain(default))
    if default and fallback is None:
        raise ValueError(f"default={default!r} names no part; the parts are {names}")

    async def run(calling: Calling, message: Message) -> Outcome:
        said = (await calling.call(chooser, message, key=chooser.key)).required()
        chosen = (_choice_of(said) if read is None else read(said)) or ""
        found = by_name.get(_plain(chosen)) if chosen.strip() else fallback
        if found is None:
            text = (
                f"it chose {chosen.strip()[:100]!r}, and the parts are {names}"
                if chosen.strip()
                else f"it chose none of the parts, which are {names}, and there is no default"
            )
            raise PartFailed(PartFailure(part=chooser.name, reason="failed", text=text))
        return await calling.call(found, message, key=found.key, result=True)

    last = len(placed_parts)
    edges = [Edge(IN, last)]
    for index, each in enumerate(placed_parts):
        label = f"{each.name}, or none" if each is fallback else each.name
        edges += [Edge(last, index, label), Edge(index, OUT)]
    title = name or f"{chooser.name}: {' or '.join(each.name for each in placed_parts)}"
    every: list[CompositionPart] = [*placed_parts, chooser]
    return Composition(title, every, run, kind="route", **{"edges": edges, **options})


def _choice_of(outcome: Outcome) -> str:
    """Return the name of a part in an answer: a text, or a field of data."""
    data = outcome.data
    if isinstance(data, dict):
        return next((str(data[each]) for each in CHOSEN_FIELDS if data.get(each)), "")
    return data if isinstance(data, str) else outcome.text


def _plain(name: str) -> str:
    """Return the normal form of a name: words without punctuation, in lower case."""
    return " ".join(re.findall(r"[^\W_]+", name.casefold()))


Backoff = float | timedelta | Sequence[float | timedelta]
"""The wait before the second call, doubled before each later one; or a list of all waits."""

When = Callable[[PartFailure], bool]
"""Returns whether to act on a failure: to retry, or to call the next part."""

MAX_RETRY_WAIT_SECONDS = 3600.0
"""The maximum wait in seconds that doubling leads to."""

MAY_PASS = frozenset({"OVERLOADED", "TOO_MANY_REQUESTS"})
"""The codes of errors that ask the caller to try again later."""


def may_pass(failure: PartFailure) -> bool:
    """Return whether a failure may be temporary.

    This is true if the agent could not be reached, did not answer in time, or rejected the message
    because of too much load. An agent's answer is final, even if it is a failure.
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
    """Return an agent that calls a part, and calls it again after a temporary failure.

    There are up to ``attempts`` calls, with waits between them: ``backoff`` seconds, doubled each
    time, or the waits of a list. ``when`` is a function of the failure (``PartFailure``) that
    returns whether to call again; the default is ``may_pass``. An answered call is never repeated,
    and the task of a call that timed out is canceled.

    Attempts and waits are stored in the log: a crash repeats none of them, and a wait of a day uses
    no memory. See ``Composition`` and ``Agent`` for the ``options``.

    Raises ``ValueError`` for ``attempts`` below 2 and for a ``backoff`` that is not a duration.
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
    return [min(first * 2**index, max(first, MAX_RETRY_WAIT_SECONDS)) for index in range(count)]


def gives_up(failure: PartFailure) -> bool:
    """Return whether the next part may help: always, unless the budget is used up."""
    return failure.reason != "budget"


def fallback(
    *parts: PartLike,
    when: When = gives_up,
    timeout: float | None = None,
    name: str = "",
    **options: Any,
) -> Composition:
    """Return an agent that calls its first part, and the next one if the first has no answer.

    A part has no answer if it fails, rejects the message, cannot be reached, or exceeds its time
    limit: ``timeout``, or that in ``part(..., timeout=...)``. Its task is canceled then. ``when``
    is a function of the failure (``PartFailure``) that returns whether the next part is called; the
    default is always, unless the budget is used up. If the last part has no answer, the composition
    fails with the failures of all parts.

    All parts get the caller's message. Failures are stored in the log, so a later attempt continues
    with the part that was reached. See ``Composition`` and ``Agent`` for the ``options``.
    """
    placed = parts_of(parts)
    if len(placed) < 2:
        raise ValueError("fallback has two or more parts: fallback(first, second)")
    check_seconds(timeout)
    check_decides(when, "when", "whether the next part is called")

    async def run(calling: Calling, message: Message) -> Outcome:
        failures: list[PartFailure] = []
        for each in placed:
            seconds = timeout if each.timeout is None else None
            outcome = await calling.call(each, message, key=each.key, timeout=seconds)
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
