"""``parallel``: all parts get the message at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from parley.compose.calling import Calling, called_with, failures_in, is_function
from parley.compose.combinators.decisions import check_failures
from parley.compose.composition import Composition
from parley.compose.drawing import OUT, Edge, side_by_side
from parley.compose.losers import stop
from parley.compose.outcome import Outcome
from parley.compose.parts import CompositionPart, PartLike, parts_of
from parley.model.parts import Message, Part

Combine = Callable[[Sequence[Outcome]], Any] | PartLike
"""What makes one answer of several: a function of the outcomes, or a part that gets them all."""

Failures = Literal["fail", "partial"]


def parallel(
    *parts: PartLike,
    combine: Combine | None = None,
    failures: Failures = "fail",
    at_least: int = 1,
    limit: int | None = None,
    name: str = "",
    **options: Any,
) -> Composition:
    """Return an agent that calls its parts at the same time, with the same message.

    ``combine`` makes one answer of theirs: a function of the list of outcomes, plain or async, in
    the order of the parts; or an agent, which gets one message with what each of them answered.
    Without it the answer has the parts of all, each text under the name of its part.

    With ``failures="fail"`` the first part that fails ends the composition, and the others are
    canceled. With ``"partial"`` all others are waited for, and ``combine`` gets the failures too
    (``Outcome.failure``); fewer than ``at_least`` answers fail the composition. At most ``limit``
    parts work at the same time. A budget is shared among the parts.

    ``options`` are those of ``Composition`` and ``Agent``.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is 1 or more, or None for all at once, not {limit!r}")
    placed = parts_of(parts)
    if not 1 <= at_least <= max(1, len(placed)):
        raise ValueError(f"at_least is between 1 and the number of parts, not {at_least!r}")
    check_failures(failures, at_least)
    combining = None if combine is None else _combining(combine, len(placed))
    by_part = isinstance(combining, CompositionPart)
    every = (*placed, combining) if isinstance(combining, CompositionPart) else placed

    async def run(calling: Calling, message: Message) -> object:
        outcomes = await together(
            calling,
            [(part, message, part.key) for part in placed],
            stops=failures == "fail",
            limit=limit,
        )
        if sum(each.ok for each in outcomes) < (len(placed) if failures == "fail" else at_least):
            raise failures_in(outcomes)
        if isinstance(combining, CompositionPart):
            given = gathered(outcomes)
            return await calling.call(combining, given, key=combining.key, result=True)
        if combining is None:
            return list(gathered(outcomes))
        return await called_with(combining, outcomes)

    edges: tuple[Edge, ...] = side_by_side(len(placed))
    if by_part:
        edges = (*[e for e in edges if e.start < 0], *_into(len(placed)))
    names = [part.name for part in placed]
    title = name or (" and ".join(names) if len(names) != 1 else f"{names[0]}, alone")
    return Composition(title, every, run, **{"kind": "parallel", "edges": edges, **options})


async def together(
    calling: Calling,
    calls: Sequence[tuple[PartLike, Any, str]],
    *,
    stops: bool = False,
    limit: int | None = None,
) -> list[Outcome]:
    """Call parts at the same time, each with its message and key; return their outcomes in order.

    With ``stops`` the first failure cancels the calls that are under way, and the outcomes are
    those that are known. ``limit`` bounds how many work at a time. What is left of a budget is
    shared among those that have not begun.
    """
    outcomes: list[Outcome | None] = [None] * len(calls)
    has_failed, begun, room = False, 0, limit or len(calls)

    async def one(index: int, share: int) -> None:
        nonlocal has_failed
        if stops and has_failed:
            return
        part, message, key = calls[index]
        outcome = outcomes[index] = await calling.call(part, message, key=key, share=share)
        has_failed = has_failed or not outcome.ok

    working: set[asyncio.Task[None]] = set()
    try:
        while not (stops and has_failed):
            while begun < len(calls) and len(working) < room:
                working.add(asyncio.create_task(one(begun, len(calls) - begun)))
                begun += 1
            if not working:
                break
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            working -= done
    finally:
        await stop(working)
    return [outcome for outcome in outcomes if outcome is not None]


def gathered(outcomes: Sequence[Outcome]) -> tuple[Part, ...]:
    """Return the parts of several answers, each text under the name of its part."""
    found: list[Part] = []
    for outcome in outcomes:
        if outcome.failure is not None:
            found.append(Part(text=f"{outcome.failure}\n", metadata={"failed": outcome.part}))
            continue
        found += _named(outcome.parts, outcome.part)
    return tuple(found)


def _named(parts: Sequence[Part], name: str) -> list[Part]:
    """Return the parts of one answer, which its name begins and a line break ends.

    An artifact that was streamed has a part for each chunk, which are one text.
    """
    texts = [index for index, part in enumerate(parts) if part.text is not None]
    named: list[Part] = []
    for index, part in enumerate(parts):
        text = part.text
        if text is not None:
            begins = f"{name}: " if index == texts[0] else ""
            text = f"{begins}{text}" + ("\n" if index == texts[-1] else "")
        named.append(replace(part, text=text, metadata={**(part.metadata or {}), "part": name}))
    return named


def _combining(combine: Any, position: int) -> Any:
    """Return the function or the part that combines. Its key is that of its place."""
    if is_function(combine) and not isinstance(combine, CompositionPart):
        return combine
    return parts_of([*[_nothing] * position, combine])[-1]


def _nothing(text: str) -> str:
    return text


def _into(count: int) -> tuple[Edge, ...]:
    return (*[Edge(index, count) for index in range(count)], Edge(count, OUT))
