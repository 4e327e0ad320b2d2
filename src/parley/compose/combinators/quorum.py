"""``quorum``: the answer on which enough parts agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from parley.compose.calling import Calling
from parley.compose.combinators.decisions import check_decides, check_seconds
from parley.compose.combinators.votes import Votes, normal
from parley.compose.composition import Composition
from parley.compose.drawing import IN, OUT, Edge
from parley.compose.losers import cancel_parts, stop
from parley.compose.outcome import Outcome
from parley.compose.parts import CompositionPart, PartLike, parts_of
from parley.engine.turn.attempt import Failed
from parley.model.parts import Message

Agree = Callable[[Outcome], Hashable]
"""Returns what an answer is counted as: the same for answers that agree."""

DECISION = "quorum"
"""The key of the decision in the log."""


def same(outcome: Outcome) -> Hashable:
    """Return what an answer is counted as: its data, else its words in lower case."""
    return normal(outcome.text, outcome.data)


def quorum(
    *parts: PartLike,
    need: int | None = None,
    agree: Agree = same,
    timeout: float | None = None,
    name: str = "",
    **options: Any,
) -> Composition:
    """Return an agent whose answer is the first on which ``need`` parts agree.

    All parts get the message. ``need`` is more than half of them if it is left out. ``agree`` is a
    function of an answer (``Outcome``) that returns what it is counted as; by default its data, or
    its words. As soon as enough agree, the answer of the first of them in the order of the parts
    is the answer, and what the others do is canceled. The decision is in the log: a further attempt
    decides the same.

    As soon as they can no longer agree, because parts failed or answered something else, the
    composition fails and says how the answers were divided; what still runs is canceled. A part
    that hangs counts as one that failed after ``timeout`` seconds, or those of its own.

    ``options`` are those of ``Composition`` and ``Agent``. Raises ``ValueError`` for a ``need``
    that the parts can never reach.
    """
    placed = parts_of(parts)
    if len(placed) < 2:
        raise ValueError("a quorum has two or more parts: quorum(first, second, third, need=2)")
    needed = len(placed) // 2 + 1 if need is None else need
    if not 1 <= needed <= len(placed):
        raise ValueError(f"need is between 1 and the number of parts ({len(placed)}), not {need!r}")
    check_seconds(timeout)
    check_decides(agree, "agree", "what an answer is counted as")

    async def call(
        calling: Calling, part: CompositionPart, message: Message, share: int
    ) -> Outcome:
        seconds = timeout if part.timeout is None else None
        return await calling.call(part, message, key=part.key, timeout=seconds, share=share)

    async def run(calling: Calling, message: Message) -> Outcome:
        attempt = calling.turn._attempt
        kept = attempt.step_result(DECISION)
        if kept is not None:
            chosen = msgspec.json.decode(kept, type=_Decision)
            await cancel_parts(calling, [part.key for part in placed])  # a crash came between
            if chosen.failure:
                raise Failed(chosen.failure)
            return (await call(calling, placed[chosen.winner], message, 1)).required()
        works = [
            asyncio.create_task(call(calling, part, message, len(placed) - index))
            for index, part in enumerate(placed)
        ]
        try:
            chosen = await _decided(works, placed, needed, agree)
        finally:
            await stop(works)
        await attempt.keep_result(DECISION, msgspec.json.encode(chosen))
        late = [part.key for part, work in zip(placed, works, strict=True) if work.cancelled()]
        await cancel_parts(calling, late)
        if chosen.failure:
            raise Failed(chosen.failure)
        return works[chosen.winner].result()

    edges = [Edge(IN, index) for index in range(len(placed))]
    edges += [Edge(index, OUT, f"{needed} agree") for index in range(len(placed))]
    title = name or f"{needed} of {', '.join(part.name for part in placed)}"
    return Composition(title, placed, run, kind="quorum", **{"edges": edges, **options})


class _Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of the part whose answer it is, or why there is none."""

    winner: int = -1
    failure: str = ""


async def _decided(
    works: list[asyncio.Task[Outcome]], parts: tuple[CompositionPart, ...], need: int, agree: Agree
) -> _Decision:
    """Return the decision as soon as there can be no other."""

    def ballot(index: int) -> Hashable:
        return agree(works[index].result())

    votes, lost = Votes(len(works), need, ballot), [""] * len(works)
    pending = set(works)
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for index, work in enumerate(works):
            if work not in done:
                continue
            outcome = work.result()
            if outcome.failure is not None:
                lost[index] = str(outcome.failure)
                votes.lose()
            elif (agreeing := votes.count(index)) is not None:
                return _Decision(winner=min(agreeing))
        if not votes.is_possible:
            return _Decision(failure=_divided(votes, parts, lost, need))


def _divided(votes: Votes, parts: tuple[CompositionPart, ...], lost: list[str], need: int) -> str:
    """Say why no answer has enough votes."""
    groups = sorted(votes.counted.values(), key=len, reverse=True)
    said = [" and ".join(parts[index].name for index in group) for group in groups]
    told = [f"{' / '.join(said)} answered differently" if len(said) > 1 else ""]
    if len(said) == 1:
        told = [f"only {said[0]} answered"]
    told += [each for each in lost if each]
    return f"{need} of {len(parts)} had to agree: {'; '.join(each for each in told if each)}"
