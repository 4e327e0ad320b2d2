"""A connection that reads a SQLite file, on a thread of the reader pool.

Readers never wait for the writer or for each other: each statement sees the database as it was when
it began.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from parley.database.sqlite.file import SqliteFile, explain

T = TypeVar("T")


class SqliteReadConnection:
    """Reads, unless the file was found to be unavailable (see ``FileWatch``)."""

    def __init__(self, connection: sqlite3.Connection, file: SqliteFile) -> None:
        self.name = str(file.path)
        self._connection = connection
        self._file = file

    def read(self, function: Callable[[sqlite3.Connection], T], asked_at: float) -> T:
        """Call ``function`` with the connection; return its result. Raises ``StoreUnavailable``."""
        if (unavailable := self._file.unavailable()) is not None:
            raise unavailable
        try:
            return function(self._connection)
        except sqlite3.Error as error:
            raise explain(error, self._file.path) from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
