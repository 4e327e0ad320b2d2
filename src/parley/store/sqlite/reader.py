"""A connection that reads a SQLite store.

Readers never wait for the writer or for each other's transactions: each statement sees the database
as it was when it began.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from parley.store.sqlite.file import SqliteFile, explain

T = TypeVar("T")


class SqliteReadConnection:
    """Where a thread reads."""

    def __init__(self, connection: sqlite3.Connection, file: SqliteFile) -> None:
        self.name = str(file.path)
        self._connection = connection
        self._file = file

    def read(self, function: Callable[[sqlite3.Connection], T], asked_at: float) -> T:
        """Return what a function makes of the connection, however long ago it was asked for.

        Nothing is read from a file that was found to be lost (see ``file_watch``).

        Raises ``StoreUnavailable``.
        """
        if (lost := self._file.lost()) is not None:
            raise lost
        try:
            return function(self._connection)
        except sqlite3.Error as error:
            raise explain(error, self._file.path) from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
