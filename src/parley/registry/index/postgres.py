"""The index of a registry in a schema of PostgreSQL, which several processes share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from parley.database.postgres.connection import Address, BoundedConnection
from parley.database.postgres.database import PostgresDatabase, PostgresSchema
from parley.database.sql import filled
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

logger = logging.getLogger(__name__)

SCHEMA = "parley_registry"
"""The schema of the tables, unless the URL names another."""

BUDGET = 5_000
"""How many entries a search ranks."""

RANKS = 15_000
"""How many words of entries a search ranks: a microsecond or two each."""

MAX_POSITION = 16_383
"""The last position of a word that PostgreSQL knows."""

NAME = "="
"""What stands before a word of the weight A where the weight must be known by the index."""

MAX_NAMES = 200
"""How many words of the weight A are there once more like that."""

CLOCK_SECONDS = 60.0
"""How often the clock is set by that of the server."""

_SESSION = SQL_FILES.queries("postgres", "session.sql")
_SCHEMA = PostgresSchema(SQL_FILES)


class PostgresRegistryIndex(RegistryIndex):
    """Keeps a registry in the database of a libpq URL; its ``?schema=`` names the schema.

    Reads and writes wait ``timeout`` seconds for a database that is away. ``open`` brings the
    schema up to date if ``migrates``, else it rejects an older one. ``clock`` returns milliseconds
    since 1970, and is corrected by the database's clock. Raises ``ValueError`` for any other URL.
    """

    def __init__(
        self,
        url: str,
        *,
        migrates: bool = True,
        timeout: float = 15.0,
        clock: Callable[[], int] | None = None,
    ) -> None:
        address = Address.of(url, schema=SCHEMA)
        super().__init__(
            PostgresDatabase(
                address,
                _SCHEMA,
                timeout=timeout,
                migrates=migrates,
                session=_SESSION["configure_session"],
            )
        )
        self._sql = _statements(address.schema)
        self._pieces = _pieces(address.schema)
        self._clock = clock
        self._offset = 0.0
        self._set_at = 0.0

    def now(self) -> int:
        """Return the time in ms, by the clock of the database."""
        if self._clock is not None:
            return self._clock()
        return round((time.time() + self._offset) * 1000)

    async def open(self) -> None:
        """Open it, with its schema up to date. Raises ``StoreUnavailable``."""
        await super().open()
        self._offset = await self._database.read(_offset)

    def _session(self, connection: BoundedConnection) -> PostgresSession:
        if time.monotonic() > self._set_at + CLOCK_SECONDS:
            self._set_at = time.monotonic()
            self._offset = _offset(connection)
        return PostgresSession(connection, self._sql, self._pieces)


@cache
def _statements(schema: str) -> dict[str, str]:
    return filled(SQL_FILES.queries("postgres", *QUERIES), {"schema": schema})


@cache
def _pieces(schema: str) -> dict[str, str]:
    return filled(SQL_FILES.pieces("postgres", "finding.sql"), {"schema": schema})


def _offset(connection: BoundedConnection) -> float:
    """Return by how many seconds the database's clock is ahead."""
    asked_at = time.time()
    [(now,)] = connection.rows(_SESSION["now"])
    return float(now) - (asked_at + time.time()) / 2


class PostgresSession:
    """A ``Session`` of a connection to PostgreSQL."""

    budget = BUDGET

    def __init__(
        self, connection: BoundedConnection, sql: Mapping[str, str], pieces: Mapping[str, str]
    ) -> None:
        self._connection = connection
        self._sql = sql
        self.pieces = pieces

    def rows(self, name: str, values: Values = NOTHING) -> list[Row]:
        """Return the rows of a statement."""
        return self._connection.rows(self._sql[name], values)

    def change(self, name: str, values: Values) -> int:
        """Execute a statement; return how many rows it changed."""
        return self._connection.execute(self._sql[name], values).rowcount

    def many(self, name: str, rows: Sequence[Values]) -> None:
        """Execute a statement for some rows, which are one JSON parameter."""
        self._connection.execute(self._sql[name], {"rows": as_json(rows)})

    def ask(self, statement: str, values: Values) -> list[Row]:
        """Return the rows of a statement that was put together."""
        return self._connection.rows(statement, values)

    def texts(self, texts: Sequence[str]) -> Any:
        """Return texts as one value."""
        return list(texts)

    def keys(self, keys: Sequence[int]) -> Any:
        """Return integers as one value."""
        return list(keys)

    def any_of(self, groups: Sequence[Sequence[str]]) -> str:
        """Return the query for entries with a word of one of some groups."""
        return " | ".join([f"'{word}'" for group in groups for word in group])

    def all_of(self, groups: Sequence[Sequence[str]]) -> str:
        """Return the query for entries with a word of each group."""
        return " & ".join([f"({self.any_of([group])})" for group in groups])

    def in_names(self, query: str) -> str:
        """Return a query restricted to words of the weight A."""
        return " | ".join([f"'{NAME}{word}'" for word in query.split("'")[1::2]])

    def matches(
        self, query: str, groups: Sequence[WordGroup], conditions: str, values: Values, limit: int
    ) -> list[Row]:
        """Return keys and relevances of entries that a query finds, ranked by all groups."""
        budget = min(self.budget, RANKS // len(groups))
        found = {**values, "query": query, "budget": budget, "limit": limit}
        ranks = []
        for number, group in enumerate(groups):
            ranks.append(self.pieces["rank"].replace("{n}", str(number)))
            found[f"weight_{number}"] = group.weight
            found[f"words_{number}"] = self.any_of([group.words])
        statement = self.pieces["matches"].replace("{rank}", " + ".join(ranks))
        return self.ask(statement.replace("{conditions}", conditions), found)

    def replace_words(self, rows: Sequence[WordsOfEntry]) -> None:
        """Store the words of entries, their standing and whether they are for everybody."""
        self.many(
            "put_words",
            [
                {
                    "key": row.key,
                    "standing": row.standing,
                    "is_public": row.is_public,
                    "words": _vector(row.words),
                }
                for row in rows
            ],
        )

    def words_of(self, keys: Sequence[int]) -> dict[int, set[str]]:
        """Return the different words that are stored of entries."""
        rows = self.rows("words_of_entries", {"keys": self.keys(keys)})
        return {
            key: {word for word in words.split() if not word.startswith(NAME)}
            for key, words in rows
        }


def _vector(words: Mapping[str, Sequence[str]]) -> str:
    """Return words by weight as the text of a tsvector. Words have no quotes."""
    every = [(word, weight) for weight, found in words.items() for word in found]
    numbered = enumerate(every[:MAX_POSITION], 1)
    vector = [f"'{word}':{position}{weight}" for position, (word, weight) in numbered]
    return " ".join([*vector, *[f"'{NAME}{word}'" for word in words["A"][:MAX_NAMES]]])
