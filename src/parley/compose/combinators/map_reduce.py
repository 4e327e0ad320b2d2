"""``map_reduce``: a message is split, a part works on each piece, and one answer is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from parley.compose.calling import Calling, called_with, failures_in, is_function
from parley.compose.combinators.decisions import check_failures
from parley.compose.combinators.parallel import Combine, Failures, gathered, together
from parley.compose.composition import Composition
from parley.compose.drawing import IN, OUT, Edge
from parley.compose.outcome import Outcome, PartFailed, PartFailure
from parley.compose.parts import CompositionPart, PartLike, part, parts_of
from parley.model.errors import an
from parley.model.parts import Message, Part, Role
from parley.model.uuid7 import new_id

MOST_ITEMS = 1000
"""Into how many items a message may be split, unless the composition says otherwise."""


def map_reduce(
    split: PartLike,
    each: PartLike,
    reduce: Combine | None = None,
    *,
    limit: int = 8,
    most: int = MOST_ITEMS,
    failures: Failures = "fail",
    at_least: int = 1,
    name: str = "",
    **options: Any,
) -> Composition:
    """Return an agent that splits a message, has a part work on each item, and joins the answers.

    ``split`` is a function of the message's text that returns a list, or an agent that answers
    with one (data that is a list, or one part for each item). An item is a text, data or a file.
    ``each`` gets one item at a time, ``limit`` of them at the same time. ``reduce`` gets the
    outcomes in the order of the items: a function of their list, plain or async, or an agent, which
    gets one message with all. Without it the answer has the parts of all, in that order, and
    names the items that failed. The items
    are in the log: a further attempt splits nothing again, and asks for no answer that it has.

    With ``failures="fail"`` the first item that fails ends the composition, and the others are
    canceled. With ``"partial"`` all others are waited for, and ``reduce`` gets the failures too;
    fewer than ``at_least`` answers fail the composition. A message without items has none to wait
    for: ``reduce`` gets an empty list. More than ``most`` items fail the composition before the
    first one is worked on.

    ``options`` are those of ``Composition`` and ``Agent``.
    """
    if limit < 1 or most < 1:
        raise ValueError(f"limit and most are 1 or more, not {min(limit, most)}")
    if at_least < 0:
        raise ValueError(f"at_least is 0 or more, not {at_least}")
    check_failures(failures, at_least)
    given: list[PartLike] = [split, part(each)]
    plain: Any = reduce if reduce is None or _is_plain(reduce) else None
    if reduce is not None and plain is None:
        given.append(reduce)
    placed = parts_of(given)
    splitting, worker, *rest = placed
    reducing = rest[0] if rest else None

    async def run(calling: Calling, message: Message) -> object:
        said = (await calling.call(splitting, message, key=splitting.key)).required()
        items = _items(said, splitting, most)
        calls = [
            (worker, _message(item, worker), f"{worker.key}#{number}")
            for number, item in enumerate(items, 1)
        ]
        stops = failures == "fail"
        outcomes = await together(calling, calls, stops=stops, limit=limit)
        enough = len(items) if stops else min(at_least, len(items))
        if sum(outcome.ok for outcome in outcomes) < enough:
            raise failures_in(outcomes)
        if reducing is not None:
            parts = gathered(outcomes) or (Part(data=[]),)
            return await calling.call(reducing, list(parts), key=reducing.key, result=True)
        if plain is None:
            return _joined(outcomes) or None
        return await called_with(plain, outcomes)

    edges = [Edge(IN, 0), Edge(0, 1, "each item")]
    edges += [Edge(1, OUT)] if reducing is None else [Edge(1, 2), Edge(2, OUT)]
    title = name or f"{worker.name} for each of {splitting.name}"
    return Composition(title, placed, run, kind="map_reduce", **{"edges": edges, **options})


def _is_plain(reduce: object) -> bool:
    return is_function(reduce) and not isinstance(reduce, CompositionPart)


def _items(said: Outcome, splitting: CompositionPart, most: int) -> list[Part]:
    """Return the items of an answer: the values of a list, else its parts."""
    parts = said.parts
    if len(parts) == 1 and parts[0].has_data:
        data = parts[0].data
        if not isinstance(data, list):
            raise _unsplit(
                splitting, f"it answered with {an(type(data).__name__)}, not with a list"
            )
        items = [Part(text=item) if isinstance(item, str) else Part(data=item) for item in data]
    else:
        items = [part for part in parts if part.text != ""]
    if len(items) > most:
        raise _unsplit(splitting, f"it made {len(items)} items, and {most} may be worked on")
    return items


def _joined(outcomes: Sequence[Outcome]) -> list[Part]:
    """Return the parts of all answers, each text ended by a line break, and what failed."""
    joined: list[Part] = []
    for number, outcome in enumerate(outcomes, 1):
        parts = list(outcome.parts)
        if outcome.failure is not None:
            failed = {"failed": outcome.part, "item": number}
            parts = [Part(text=f"Item {number}: {outcome.failure}", metadata=failed)]
        texts = [index for index, part in enumerate(parts) if part.text is not None]
        if texts:
            last = parts[texts[-1]]
            parts[texts[-1]] = replace(last, text=f"{last.text}\n")
        joined += parts
    return joined


def _unsplit(splitting: CompositionPart, text: str) -> PartFailed:
    return PartFailed(PartFailure(part=splitting.name, reason="failed", text=text))


def _message(item: Part, worker: CompositionPart) -> Message | Sequence[Part]:
    return Message(message_id=new_id(), role=Role.USER, parts=(item,))
