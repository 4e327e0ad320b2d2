"""Combinators whose parts work concurrently: parallel, broadcast, map_reduce and quorum."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from parley.compose.calling import (
    Calling,
    called_with,
    cancel_parts,
    failures_in,
    is_function,
    stop,
)
from parley.compose.composition import Composition, check_decides, check_failures, check_seconds
from parley.compose.drawing import IN, OUT, Edge, side_by_side
from parley.compose.outcome import Outcome, PartFailed, PartFailure
from parley.compose.parts import CompositionPart, PartLike, part, parts_of
from parley.engine.turn.attempt import Failed
from parley.model.errors import an
from parley.model.ids import new_id
from parley.model.parts import Message, Part, Role

Combine = Callable[[Sequence[Outcome]], Any] | PartLike
"""Combines several answers into one: a function of the outcomes, or a part that gets them all."""

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

    ``combine`` makes one answer: a plain or async function of the list of outcomes, in the order of
    the parts; or an agent, which gets one message with all answers. By default the answer has the
    parts of all answers, each text under the name of its agent.

    With ``failures="fail"`` the first failure ends the composition, and the other parts are
    canceled. With ``"partial"`` the other parts continue, and ``combine`` gets the failures too
    (``Outcome.failure``); fewer than ``at_least`` answers fail the composition. At most ``limit``
    parts work at the same time. A budget is shared among the parts.

    See ``Composition`` and ``Agent`` for the ``options``.
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
    """Call parts concurrently, each with its message and key. Return their outcomes in order.

    With ``stops`` the first failure cancels the running calls, and only known outcomes are
    returned. ``limit`` is the maximum number of concurrent calls. The remaining budget is shared
    among the parts that have not begun.
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
    """Return the parts of one answer, with the agent's name before it and a line break after it.

    A streamed artifact has a part for each chunk; together these are one text.
    """
    texts = [index for index, each in enumerate(parts) if each.text is not None]
    named: list[Part] = []
    for index, each in enumerate(parts):
        text = each.text
        if text is not None:
            begins = f"{name}: " if index == texts[0] else ""
            text = f"{begins}{text}" + ("\n" if index == texts[-1] else "")
        named.append(replace(each, text=text, metadata={**(each.metadata or {}), "part": name}))
    return named


def _combining(combine: Any, position: int) -> Any:
    """Return the function or the part that combines. Its position is part of its key."""
    if is_function(combine) and not isinstance(combine, CompositionPart):
        return combine
    return parts_of([*[_nothing] * position, combine])[-1]


def _nothing(text: str) -> str:
    return text


def _into(count: int) -> tuple[Edge, ...]:
    return (*[Edge(index, count) for index in range(count)], Edge(count, OUT))


def broadcast(
    *parts: PartLike,
    combine: Combine | None = None,
    limit: int | None = None,
    name: str = "",
    **options: Any,
) -> Composition:
    """Return an agent that sends a message to all of its parts, and answers with all outcomes.

    No failure stops the other parts, and the composition fails only if all parts do. ``combine``
    gets all outcomes in the order of the parts, including failures. By default the answer has the
    parts of all answers, and names the failed parts with reasons. At most ``limit`` parts work at a
    time.

    See ``Composition`` and ``Agent`` for the ``options``.
    """
    placed = parts_of(parts)
    title = name or f"Broadcast to {' and '.join(part.name for part in placed)}"
    options = {"kind": "broadcast", **options}
    return parallel(
        *placed, combine=combine, failures="partial", at_least=1, limit=limit, name=title, **options
    )


MOST_ITEMS = 1000
"""The default maximum number of items into which a message may be split."""


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
    """Return an agent that splits a message, lets a part work on each item, and joins the answers.

    ``split`` is a function of the message's text that returns a list, or an agent that answers with
    one (data that is a list, or one part for each item). An item is a text, data or a file.
    ``each`` gets one item at a time, with at most ``limit`` concurrent calls. ``reduce`` gets the
    outcomes in the order of the items: it is a plain or async function of their list, or an agent,
    which gets one message with all answers. By default the answer has the parts of all answers in
    that order, and names the items that failed. The items are stored in the log: a later attempt
    does not split again, and does not repeat answered calls.

    With ``failures="fail"`` the first failure ends the composition, and the other items are
    canceled. With ``"partial"`` the other items continue, and ``reduce`` gets the failures too;
    fewer than ``at_least`` answers fail the composition. For a message without items ``reduce``
    gets an empty list. More than ``most`` items fail the composition before work on the first item
    begins.

    See ``Composition`` and ``Agent`` for the ``options``.
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
    """Return the parts of all answers, each text with a line break at its end, and the failures."""
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


def normal(text: str, data: Any = None) -> Hashable:
    """Return the normal form in which answers are compared: the data, else the words."""
    if data is not None:
        return msgspec.json.encode(data, order="sorted")
    return " ".join(text.casefold().split()).strip(".!?")


class Votes:
    """Counts the answers of ``voters`` parts, of which ``need`` have to agree.

    ``ballot`` returns the vote of an answer, which is equal for answers that agree.
    """

    def __init__(self, voters: int, need: int, ballot: Callable[[Any], Hashable]) -> None:
        self._open = voters
        self._need = need
        self._ballot = ballot
        self._counted: dict[Hashable, list[Any]] = {}

    def count(self, answer: Any) -> Sequence[Any] | None:
        """Count an answer. Return the agreeing answers if there are enough, else ``None``."""
        self._open -= 1
        ballot = self._ballot(answer)
        try:
            agreeing = self._counted.setdefault(ballot, [])
        except TypeError:
            raise TypeError(
                f"agree= returns the vote of an answer, such as a str: a "
                f"{type(ballot).__qualname__} cannot be compared"
            ) from None
        agreeing.append(answer)
        return agreeing if len(agreeing) >= self._need else None

    def lose(self) -> None:
        """Count a part that gives no answer."""
        self._open -= 1

    @property
    def is_possible(self) -> bool:
        """True if enough votes can still agree, given the parts that have not answered."""
        best = max(map(len, self._counted.values()), default=0)
        return best + self._open >= self._need

    @property
    def counted(self) -> Mapping[Hashable, Sequence[Any]]:
        """The answers so far, by vote."""
        return self._counted


Agree = Callable[[Outcome], Hashable]
"""Returns the vote of an answer, which is equal for answers that agree."""

DECISION = "quorum"
"""The key of the decision in the log."""


def same(outcome: Outcome) -> Hashable:
    """Return the vote of an answer: its data, else its words in lower case."""
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

    All parts get the message. The default of ``need`` is more than half of the parts. ``agree`` is
    a function of an answer (``Outcome``) that returns its vote; the default vote is the data or the
    words. As soon as enough votes agree, the first agreeing answer in the order of the parts is the
    answer, and the other parts are canceled. The decision is stored in the log: a later attempt
    decides the same.

    As soon as agreement has become impossible, because of failures or different answers, the
    composition fails with a summary of the votes, and the running parts are canceled. A part fails
    after ``timeout`` seconds, or after its own timeout.

    See ``Composition`` and ``Agent`` for the ``options``. Raises ``ValueError`` for a ``need`` that
    the parts can never reach.
    """
    placed = parts_of(parts)
    if len(placed) < 2:
        raise ValueError("a quorum has two or more parts: quorum(first, second, third, need=2)")
    needed = len(placed) // 2 + 1 if need is None else need
    if not 1 <= needed <= len(placed):
        raise ValueError(f"need is between 1 and the number of parts ({len(placed)}), not {need!r}")
    check_seconds(timeout)
    check_decides(agree, "agree", "the vote of an answer")

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
            await cancel_parts(
                calling, [part.key for part in placed]
            )  # an attempt ended before this
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
    """The position of the part whose answer was chosen, or the reason why there is none."""

    winner: int = -1
    failure: str = ""


async def _decided(
    works: list[asyncio.Task[Outcome]], parts: tuple[CompositionPart, ...], need: int, agree: Agree
) -> _Decision:
    """Return the decision as soon as it is final."""

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
    """Return the reason why no answer has enough votes."""
    groups = sorted(votes.counted.values(), key=len, reverse=True)
    said = [" and ".join(parts[index].name for index in group) for group in groups]
    told = [f"{' / '.join(said)} answered differently" if len(said) > 1 else ""]
    if len(said) == 1:
        told = [f"only {said[0]} answered"]
    told += [each for each in lost if each]
    return f"{need} of {len(parts)} had to agree: {'; '.join(each for each in told if each)}"
