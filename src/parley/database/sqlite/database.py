"""A database of an application in a SQLite file, which one process at a time can open."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from parley.database.database import Database, Opened
from parley.database.sqlite.file import SqliteFile, SqliteSchema, Synchronous
from parley.database.sqlite.reader import SqliteReadConnection
from parley.database.sqlite.writer import SqliteGroupWriter, SqliteOperations


class SqliteDatabase(Database[sqlite3.Connection]):
    """What an application keeps in the file at ``path``. See ``SqliteFile`` for the options."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: SqliteSchema,
        *,
        synchronous: Synchronous = "FULL",
        busy_timeout: float = 5.0,
        readers: int = 2,
    ) -> None:
        self._path = Path(path).resolve()
        super().__init__(str(self._path))
        self._schema = schema
        self._synchronous: Synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._readers = readers
        self._file: SqliteFile | None = None

    @property
    def unavailable_reason(self) -> str:
        """The file that is missing as of the last check, which is made every second."""
        return self._file.watch.unavailable_reason if self._file is not None else ""

    def _open(self) -> Opened[sqlite3.Connection]:
        file = SqliteFile(
            self._path,
            self._schema,
            synchronous=self._synchronous,
            busy_timeout=self._busy_timeout,
            readers=self._readers,
        )
        self._file, self.migrated = file, file.migrated
        writer = SqliteGroupWriter(file, SqliteOperations(file.writer))
        return writer, [SqliteReadConnection(connection, file) for connection in file.readers]

    def _release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
