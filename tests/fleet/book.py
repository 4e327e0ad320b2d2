"""What callers saw of their tasks, written down to be compared with the store."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from parley import Task


class Read(NamedTuple):
    """A stream that somebody read to its end, over however many connections.

    ``numbered`` are the numbers of its events and the events; ``after`` is where it began.
    """

    task_id: str
    who: str
    after: int
    numbered: list[tuple[int, Any]]


class Book:
    """Everything that callers were told. ``refused`` are those who were turned away, by reason."""

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
        """Write down a whole stream."""
        self.reads.append(Read(task_id, who, after, numbered))

    def says(self, task_id: str, text: str) -> None:
        """Write down a message that the agent has taken."""
        self.said.setdefault(task_id, []).append(text)
