"""``sequence``: each part gets what the one before it answered."""

from __future__ import annotations

from typing import Any

from parley.compose.calling import Calling
from parley.compose.composition import Composition
from parley.compose.outcome import Outcome
from parley.compose.parts import PartLike, parts_of
from parley.model.parts import Message


def sequence(*parts: PartLike, name: str = "", **options: Any) -> Composition:
    """Return an agent that calls its parts one after another.

    The first gets the caller's message, each other what the one before it answered: its text, data
    and files. The answer of the last is the answer, and its artifacts arrive as they come. A part
    that fails ends the composition: it fails too, and says which part and why.

    ``options`` are those of ``Composition`` and ``Agent``.
    """
    placed = parts_of(parts)

    async def run(calling: Calling, message: Message) -> Outcome:
        given: Message | Outcome = message
        for part in placed:
            is_last = part is placed[-1]
            given = (await calling.call(part, given, key=part.key, result=is_last)).required()
        assert isinstance(given, Outcome)
        return given

    names = [part.name for part in placed]
    title = name or (", then ".join(names) if len(names) != 1 else f"{names[0]}, alone")
    return Composition(title, placed, run, kind="sequence", **options)
