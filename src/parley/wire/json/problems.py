"""Problems with a value that a peer sent: pairs of the path to it and what would be right.

Readers of JSON and of protobuf raise and report them in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from parley.model.errors import FieldViolation

Problem = tuple[str, str]

MAX_PROBLEMS = 20
"""The number of problems that are told: a body full of them must not make a huge answer."""


class InvalidValue(Exception):
    """A value that cannot be read, with its problems, as seen from the value."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)[:MAX_PROBLEMS]
        super().__init__(self.problems)

    def under(self, name: str | int) -> list[Problem]:
        """Return the problems as seen from the value that holds this one as ``name``."""
        return [problem_under(name, problem) for problem in self.problems]

    @property
    def violations(self) -> list[FieldViolation]:
        """The problems, as an error of A2A carries them."""
        return [FieldViolation(*problem) for problem in self.problems]


def problem_under(name: str | int, problem: Problem) -> Problem:
    """Return a problem as seen from the object or list that holds the value as ``name``."""
    path, description = problem
    name = f"[{name}]" if isinstance(name, int) else name[:40]
    return (f"{name}{path}" if not path or path[0] == "[" else f"{name}.{path}", description)


def expected(what: str, value: object) -> InvalidValue:
    """Return the complaint that ``value`` is of another kind than ``what``."""
    return InvalidValue([("", f"expected {what}, got {kind_name(value)}")])


def kind_name(value: object) -> str:
    """Return what JSON calls the kind of a value."""
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")


def read_items(items: Iterable[tuple[Any, Any]], read: Callable[[Any], Any]) -> list[Any]:
    """Return what ``read`` makes of named items. Raises ``InvalidValue`` with all problems."""
    made = []
    problems: list[Problem] = []
    for name, item in items:
        try:
            made.append(read(item))
        except InvalidValue as wrong:
            problems += wrong.under(name)
            if len(problems) >= MAX_PROBLEMS:
                break
    if problems:
        raise InvalidValue(problems)
    return made


def read_members(members: Mapping[str, Any], read: Callable[[Any], Any]) -> dict[str, Any]:
    """Return what ``read`` makes of the values of an object or a protobuf map.

    Raises ``InvalidValue`` with all problems.
    """
    try:
        return {name: read(members[name]) for name in members}
    except InvalidValue:
        items = read_items(((name, members[name]) for name in members), read)
        return dict(zip(members, items, strict=True))
