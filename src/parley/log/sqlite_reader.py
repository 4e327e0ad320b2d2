"""A connection that reads a SQLite store.

Readers never wait for the writer or for each other's transactions: each statement sees the database
as it was when it began.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from parley.log.sqlite_file import explain

T = TypeVar("T")


class SqliteSource:
    """Where a thread reads."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.name = str(path)
        self._connection = connection
        self._path = path

    def read(self, function: Callable[[sqlite3.Connection], T], asked_at: float) -> T:
        """Return what a function makes of the connection, however long ago it was asked for.

        Raises ``StoreUnavailable``.
        """
        try:
            return function(self._connection)
        except sqlite3.Error as error:
            raise explain(error, self._path) from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
