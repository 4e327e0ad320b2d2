"""The index of a registry in a SQLite file, which one process at a time can open."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from parley.database.sqlite.database import SqliteDatabase
from parley.database.sqlite.file import SqliteSchema, Synchronous
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.session import (
    NOTHING,
    QUERIES,
    Row,
    Values,
    WordGroup,
    WordsOfEntry,
    as_json,
)
from parley.registry.sql import SQL_FILES

APPLICATION_ID = 0x50415247  # "PARG": a registry of Parley's

BUDGET = 10_000
"""How many entries a search ranks: about 10 ms."""

_SQL = SQL_FILES.queries("sqlite", *QUERIES)
_PIECES = SQL_FILES.pieces("sqlite", "finding.sql")
_SCHEMA = SqliteSchema(APPLICATION_ID, SQL_FILES)


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class SqliteRegistryIndex(RegistryIndex):
    """Keeps a registry in the file at ``path``; in a temporary one, removed by ``close``, without.

    ``clock`` returns milliseconds since 1970.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "",
        *,
        synchronous: Synchronous = "FULL",
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._folder: Path | None = None
        file = Path(path)
        if not os.fspath(path):
            self._folder = Path(tempfile.gettempdir(), f"parley-registry-{uuid4().hex}")
            file, synchronous = self._folder / "registry.db", "NORMAL"
        super().__init__(SqliteDatabase(file, _SCHEMA, synchronous=synchronous))
        if self._folder is not None:
            self.name = "memory:"
        self._clock = clock

    def now(self) -> int:
        """Return the time in ms."""
        return self._clock()

    async def open(self) -> None:
        """Open it. Visits that a killed process had claimed are due again at once."""
        if self._folder is not None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        await super().open()
        await self._change("release_sources")

    async def close(self) -> None:
        """Finish the running work, and close it. Idempotent."""
        await super().close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _session(self, connection: sqlite3.Connection) -> SqliteSession:
        return SqliteSession(connection)


class SqliteSession:
    """A ``Session`` of a connection to SQLite."""

    pieces: Mapping[str, str] = _PIECES
    budget = BUDGET

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, name: str, values: Values = NOTHING) -> list[Row]:
        """Return the rows of a statement."""
        return self._connection.execute(_SQL[name], dict(values)).fetchall()

    def change(self, name: str, values: Values) -> int:
        """Execute a statement; return how many rows it changed."""
        return self._connection.execute(_SQL[name], dict(values)).rowcount

    def many(self, name: str, rows: Sequence[Values]) -> None:
        """Execute a statement for each of some rows."""
        self._connection.executemany(_SQL[name], rows)

    def ask(self, statement: str, values: Values) -> list[Row]:
        """Return the rows of a statement that was put together."""
        return self._connection.execute(statement, dict(values)).fetchall()

    def texts(self, texts: Sequence[str]) -> Any:
        """Return texts as one value: a JSON array."""
        return as_json(texts)

    def keys(self, keys: Sequence[int]) -> Any:
        """Return integers as one value: a JSON array."""
        return as_json(keys)

    def any_of(self, groups: Sequence[Sequence[str]]) -> str:
        """Return the query for entries with a word of one of some groups."""
        return " OR ".join([f'"{word}"' for group in groups for word in group])

    def all_of(self, groups: Sequence[Sequence[str]]) -> str:
        """Return the query for entries with a word of each group."""
        return " AND ".join([f"({self.any_of([group])})" for group in groups])

    def in_names(self, query: str) -> str:
        """Return a query restricted to words of the weight A."""
        return f"{{a}} : ({query})"

    def matches(
        self, query: str, groups: Sequence[WordGroup], conditions: str, values: Values, limit: int
    ) -> list[Row]:
        """Return keys and relevances of entries that a query finds, ranked by all groups.

        FTS5 ranks by the words of the query: others are added so that they exclude nothing.
        """
        others = self.any_of([group.words for group in groups])
        if others != query:
            query = f"({query}) AND ({others})"
        statement = self.pieces["matches"].replace("{conditions}", conditions)
        return self.ask(
            statement, {**values, "query": query, "budget": self.budget, "limit": limit}
        )

    def replace_words(self, rows: Sequence[WordsOfEntry]) -> None:
        """Store the words of entries."""
        known = [{"key": row.key} for row in rows if not row.is_new]
        if known:
            self.many("remove_words", known)
        self.many(
            "put_words",
            [
                {"key": row.key}
                | {weight.lower(): " ".join(words) for weight, words in row.words.items()}
                for row in rows
            ],
        )

    def words_of(self, keys: Sequence[int]) -> dict[int, set[str]]:
        """Return the different words that are stored of entries."""
        return {
            row[0]: {word for words in row[1:] for word in words.split()}
            for row in self.rows("words_of_entries", {"keys": self.keys(keys)})
        }
