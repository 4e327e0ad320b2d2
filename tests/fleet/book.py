"""A record of all that callers saw of their tasks, for a comparison with the store."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from parley import Task


class Read(NamedTuple):
    """A stream that a caller read to its end, over any number of connections.

    ``numbered`` has the events with their numbers; ``after`` is the number before the first event.
    """

    task_id: str
    who: str
    after: int
    numbered: list[tuple[int, Any]]


class Book:
    """A record of all responses to callers. ``refused`` counts rejected calls by reason."""

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.answers: list[Task] = []
        self.looks: list[list[Task]] = []
        self.said: dict[str, list[str]] = {}
        self.hooked: dict[str, str] = {}
        self.official: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def read(self, who: str, task_id: str, numbered: list[tuple[int, Any]], after: int = 0) -> None:
        """Record a whole stream."""
        self.reads.append(Read(task_id, who, after, numbered))

    def says(self, task_id: str, text: str) -> None:
        """Record a message that the agent accepted."""
        self.said.setdefault(task_id, []).append(text)
