"""A transaction of either database, as the functions of the index use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import msgspec

Row: TypeAlias = tuple[Any, ...]
Values: TypeAlias = Mapping[str, Any]

NOTHING: Values = MappingProxyType({})

QUERIES = ("entries.sql", "finding.sql", "sources.sql", "health.sql", "domains.sql", "acts.sql")
"""The files of named statements; each database has them all."""


class WordGroup(msgspec.Struct, frozen=True):
    """A word of a need, or those that begin with it, and how much finding it says of an entry."""

    words: tuple[str, ...]
    entries: int
    weight: float


class WordsOfEntry(msgspec.Struct, frozen=True):
    """The words of an entry by weight, with the standing that it gets.

    ``is_new``: no words are stored of it yet.
    """

    key: int
    standing: str
    is_public: bool
    words: Mapping[str, Sequence[str]]
    is_new: bool


class Session(Protocol):
    """Runs named statements of ``registry/sql/``, with named values.

    ``pieces`` are parts of statements that searches are put together from.
    """

    pieces: Mapping[str, str]

    budget: int
    """How many entries a search may rank."""

    def rows(self, name: str, values: Values = ...) -> list[Row]:
        """Return the rows of a statement."""
        ...

    def change(self, name: str, values: Values) -> int:
        """Execute a statement; return how many rows it changed."""
        ...

    def many(self, name: str, rows: Sequence[Values]) -> None:
        """Execute a statement for each of some rows, which have the same names."""
        ...

    def ask(self, statement: str, values: Values) -> list[Row]:
        """Return the rows of a statement that was put together."""
        ...

    def texts(self, texts: Sequence[str]) -> Any:
        """Return texts as one value."""
        ...

    def keys(self, keys: Sequence[int]) -> Any:
        """Return integers as one value."""
        ...

    def any_of(self, groups: Sequence[Sequence[str]]) -> str:
        """Return the query for entries with a word of one of some groups."""
        ...

    def all_of(self, groups: Sequence[Sequence[str]]) -> str:
        """Return the query for entries with a word of each group."""
        ...

    def in_names(self, query: str) -> str:
        """Return a query restricted to words of the weight A."""
        ...

    def matches(
        self, query: str, groups: Sequence[WordGroup], conditions: str, values: Values, limit: int
    ) -> list[Row]:
        """Return keys and relevances of entries that a query finds, ranked by all groups."""
        ...

    def replace_words(self, rows: Sequence[WordsOfEntry]) -> None:
        """Store the words of entries, and what else a search looks at."""
        ...

    def words_of(self, keys: Sequence[int]) -> dict[int, set[str]]:
        """Return the different words that are stored of entries."""
        ...


def as_json(value: Any) -> str:
    """Return a value as JSON, bytes as base64."""
    return msgspec.json.encode(value).decode()
