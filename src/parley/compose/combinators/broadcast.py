"""``broadcast``: all parts get the message, and whatever became of it is the answer."""

from __future__ import annotations

from typing import Any

from parley.compose.combinators.parallel import Combine, parallel
from parley.compose.composition import Composition
from parley.compose.parts import PartLike, parts_of


def broadcast(
    *parts: PartLike,
    combine: Combine | None = None,
    limit: int | None = None,
    name: str = "",
    **options: Any,
) -> Composition:
    """Return an agent that tells all of its parts, and answers with what became of each.

    No failure stops the others, and the composition fails only if all parts do. ``combine`` gets
    all outcomes in the order of the parts, failures too; without it the answer has the parts of
    all answers, and names those that failed and why. At most ``limit`` parts work at a time.

    ``options`` are those of ``Composition`` and ``Agent``.
    """
    placed = parts_of(parts)
    title = name or f"Broadcast to {' and '.join(part.name for part in placed)}"
    options = {"kind": "broadcast", **options}
    return parallel(
        *placed, combine=combine, failures="partial", at_least=1, limit=limit, name=title, **options
    )
