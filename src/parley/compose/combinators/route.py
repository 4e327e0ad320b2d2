"""``route``: one part gets the message, chosen for each message."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from parley.compose.calling import Calling
from parley.compose.combinators.decisions import check_decides
from parley.compose.composition import Composition
from parley.compose.drawing import IN, OUT, Edge
from parley.compose.outcome import Outcome, PartFailed, PartFailure
from parley.compose.parts import CompositionPart, PartLike, part, parts_of
from parley.model.parts import Message

Choose = PartLike
"""What chooses: a function of the message's text that returns a part's name, or an agent."""

CHOSEN_FIELDS = ("part", "route", "name", "intent")
"""The fields of an answer that is data in which the name of the chosen part may be."""


def route(
    choose: Choose,
    *parts: PartLike,
    default: str = "",
    read: Callable[[Outcome], str] | None = None,
    name: str = "",
    **options: Any,
) -> Composition:
    """Return an agent that passes each message to one of its parts, whose answer is the answer.

    ``choose`` is asked first: a function of the message's text that returns the name of a part, or
    an agent that answers with the name (as text, or as data with a ``part``). The names are those
    on ``part(..., name=...)``, else those of the agents; upper and lower case are the same.
    ``read`` finds the name in an answer of another form. The choice is in the log: a further
    attempt does not choose again.

    ``default`` is the part for messages for which nothing is chosen (``None``, or an empty text). A
    name that no part has fails the composition, which says what was chosen and what there is.

    ``options`` are those of ``Composition`` and ``Agent``. Raises ``ValueError`` for a ``default``
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
                f"no choice can tell {each.name!r} from {same.name!r}: a name is words, and marks "
                "and upper case do not count; give it another one, with part(..., name=...)"
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
    """Return the name of a part that an answer has: a text, or a field of data."""
    data = outcome.data
    if isinstance(data, dict):
        return next((str(data[each]) for each in CHOSEN_FIELDS if data.get(each)), "")
    return data if isinstance(data, str) else outcome.text


def _plain(name: str) -> str:
    """Return a name as names are compared: words, without marks and upper case."""
    return " ".join(re.findall(r"[^\W_]+", name.casefold()))
