"""Counts agreeing answers: when enough agree, and when they no longer can."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import msgspec


def normal(text: str, data: Any = None) -> Hashable:
    """Return the form in which answers are compared: equal data, else the same words."""
    if data is not None:
        return msgspec.json.encode(data, order="sorted")
    return " ".join(text.casefold().split()).strip(".!?")


class Votes:
    """The answers of ``voters`` parts, of which ``need`` have to agree.

    ``ballot`` returns what an answer is counted as: the same for answers that agree.
    """

    def __init__(self, voters: int, need: int, ballot: Callable[[Any], Hashable]) -> None:
        self._open = voters
        self._need = need
        self._ballot = ballot
        self._counted: dict[Hashable, list[Any]] = {}

    def count(self, answer: Any) -> Sequence[Any] | None:
        """Count an answer; return those that agree if they are enough now."""
        self._open -= 1
        ballot = self._ballot(answer)
        try:
            agreeing = self._counted.setdefault(ballot, [])
        except TypeError:
            raise TypeError(
                f"agree= returns what an answer is counted as, such as a str: a "
                f"{type(ballot).__qualname__} cannot be compared"
            ) from None
        agreeing.append(answer)
        return agreeing if len(agreeing) >= self._need else None

    def lose(self) -> None:
        """Count a part that gives no answer."""
        self._open -= 1

    @property
    def is_possible(self) -> bool:
        """Whether the parts that have not answered can still make enough agree."""
        best = max(map(len, self._counted.values()), default=0)
        return best + self._open >= self._need

    @property
    def counted(self) -> Mapping[Hashable, Sequence[Any]]:
        """The answers so far, by what they are counted as."""
        return self._counted
