"""The index of a registry in a SQLite file, which one process at a time can open."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from parley.database.sql import filled
from parley.database.sqlite.database import SqliteDatabase
from parley.database.sqlite.file import SqliteSchema, Synchronous
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.writing import OWN, SHARED, WORDS, Session, as_json
from parley.registry.sql import SQL_FILES

APPLICATION_ID = 0x50415247  # "PARG": a registry of Parley's

_SQL = filled(
    SQL_FILES.queries("sqlite", OWN) | SQL_FILES.queries("shared", *SHARED),
    {**SQL_FILES.pieces("sqlite", WORDS), "schema": "main"},
)
_SCHEMA = SqliteSchema(APPLICATION_ID, SQL_FILES)


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class SqliteRegistryIndex(RegistryIndex):
    """Stores a registry in the file at ``path``; without it, in a temporary file that ``close``
    removes.

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
        """Open it. The claims of a killed process are released at once."""
        if self._folder is not None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        await super().open()
        await self._change("release_sources")

    async def close(self) -> None:
        """Finish the running work, and close it. Idempotent."""
        await super().close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _session(self, connection: sqlite3.Connection) -> Session:
        return Session(
            lambda name, values: connection.execute(_SQL[name], dict(values)),
            lambda name, rows: connection.executemany(_SQL[name], rows),
            as_json,
        )
