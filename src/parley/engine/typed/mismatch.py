"""What does not fit a type: every field, and what was expected there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from parley.model.errors import FieldViolation

MAX_VIOLATIONS = 50
"""How many violations of one value are reported."""

WHOLE = "$"
"""The field of a violation that concerns the whole value."""

Path = tuple[str | int, ...]
"""The way to a field: member names and positions in lists."""


class Violation(NamedTuple):
    """A field that does not fit, and what was expected there."""

    path: Path
    description: str

    @property
    def field(self) -> str:
        """The path as text, such as ``stops[0].city``; ``$`` for the whole value."""
        text = ""
        for step in self.path:
            if isinstance(step, int):
                text += f"[{step}]"
            else:
                text += f".{step}" if text else step
        return text or WHOLE

    def __str__(self) -> str:
        return f"{self.field}: {self.description}"


class Mismatch(ValueError):
    """A value that does not fit its type."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)[:MAX_VIOLATIONS]
        super().__init__("; ".join(map(str, self.violations)))

    @property
    def fields(self) -> tuple[FieldViolation, ...]:
        """The violations as the errors of the protocol have them."""
        return tuple(FieldViolation(each.field, each.description) for each in self.violations)


class UnsupportedType(TypeError):
    """A type that has no JSON form. The text says which, and what would be right."""
