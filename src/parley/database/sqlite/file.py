"""Opens a SQLite database: locked, checked for damage, and with its schema up to date.

One connection writes, and it alone moves the write-ahead log into the database file. So the
WAL-reset bug of SQLite before 3.51.3, which needs two such connections, cannot occur. The lock file
keeps other processes from opening the second one.

A symbolic link that names the database is resolved once, by the caller. The files are opened
through no link, have one name, and are private to their owner. While the database is open they are
watched: writes to a file without a name would be lost.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from parley.database.errors import StoreUnavailable
from parley.database.sql import Migration, SqlFiles, filled
from parley.database.sqlite.file_watch import REMEDY, FileWatch
from parley.database.sqlite.lock_file import LockFile, LockHeld
from parley.database.sqlite.private_file import UnsafeFile, open_private

logger = logging.getLogger(__name__)

FOLDER = "sqlite"
"""The folder of an application's SQL files that are for SQLite."""

CACHE_KIB = 32 * 1024
QUICK_CHECK_SECONDS = 2.0
WAL_BYTES = 64 << 20

LOCK_SECONDS = 1.0
"""How long to wait for the lock: a command, or ``parley.complete``, may have the file for a moment,
and must not keep a server from starting.
"""

LOCK_INTERVAL = 0.02

CONNECTION_SQL = SqlFiles("parley.database").queries("sqlite", "connection.sql")
OLDEST = (3, 35, 0)

Synchronous = Literal["FULL", "NORMAL"]
"""Whether what was committed survives a power cut, or only the end of the process."""


class SqliteSchema(msgspec.Struct, frozen=True):
    """What an application keeps in a SQLite file.

    ``application_id`` marks its files: others are refused. Its migrations are those of ``files``;
    ``steps`` are what versions do besides their SQL, in the same transaction. ``configure`` is
    called with each connection, those of readers too, before anything is read.
    """

    application_id: int
    files: SqlFiles
    steps: Mapping[int, Callable[[sqlite3.Connection], object]] = {}
    configure: Callable[[sqlite3.Connection], object] | None = None
    cache_kib: int = CACHE_KIB

    def migrations(self) -> list[Migration]:
        """Return the migrations, in order."""
        return self.files.migrations(FOLDER)

    def sql(self, name: str, **words: object) -> str:
        """Return a statement about connections, for this schema."""
        own = {"application_id": self.application_id, "cache_kib": self.cache_kib}
        statement = {name: CONNECTION_SQL[name]}
        return filled(statement, {"wal_bytes": WAL_BYTES, **own, **words})[name]


def code_of(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, 0 when the error is not SQLite's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def explain(error: sqlite3.Error, path: Path) -> StoreUnavailable:
    """Return an error that says what is wrong with the database, and what to do about it."""
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    reasons = {
        sqlite3.SQLITE_FULL: "the disk is full; make room on it",
        sqlite3.SQLITE_IOERR: "the disk does not take or give the data; it may be full, over "
        "quota, gone or damaged",
        sqlite3.SQLITE_BUSY: "another program has locked the database; end that program, or give "
        "this server a database of its own",
        sqlite3.SQLITE_LOCKED: "another program has locked the database; end that program",
        sqlite3.SQLITE_CORRUPT: "the database is damaged; restore it from a backup, or move it "
        "away to begin with an empty one",
        sqlite3.SQLITE_NOTADB: "the file is not a SQLite database; name another file, or move it "
        "away",
        sqlite3.SQLITE_READONLY: "the database cannot be written to; check its permissions",
        sqlite3.SQLITE_CANTOPEN: "the database cannot be opened; check that its directory can be "
        "written to",
        sqlite3.SQLITE_PERM: "the database cannot be opened; check its permissions",
    }
    reason = reasons.get(code_of(error), "SQLite reports an error")
    return StoreUnavailable(f"{path}: {reason} ({name}: {error})")


class SqliteFile:
    """A database that only this process has open: its lock, and its connections.

    ``path`` is resolved. ``opened`` is called with the writer's connection once the schema is up to
    date, before anything reads. A write waits ``busy_timeout`` seconds for another program's lock.
    Opening blocks: call it in a thread. Raises ``StoreUnavailable``.
    """

    def __init__(
        self,
        path: Path,
        schema: SqliteSchema,
        *,
        synchronous: Synchronous = "FULL",
        busy_timeout: float = 5.0,
        readers: int = 0,
        opened: Callable[[sqlite3.Connection], object] | None = None,
    ) -> None:
        self.path = path
        self.schema = schema
        self.readers: list[sqlite3.Connection] = []
        self.migrated: list[str] = []
        self.lock = _acquire_lock(path)
        try:
            identity = _make_private(path)
            self.writer = _open_writer(path, schema, synchronous, busy_timeout, self.migrated)
            try:
                if opened is not None:
                    opened(self.writer)
                for _ in range(readers):
                    self.readers.append(_open_reader(path, schema))
                self.watch = _watch(path, self.lock, identity)
            except BaseException:
                for connection in (*self.readers, self.writer):
                    connection.close()
                raise
        except BaseException as error:
            self.lock.release()
            if isinstance(error, sqlite3.Error):
                raise explain(error, path) from error
            raise

    def close(self) -> None:
        """Close the connections and release the lock, when no thread uses them any more."""
        try:
            for connection in (*self.readers, self.writer):
                connection.close()
        finally:
            self.lock.release()

    def unavailable(self) -> StoreUnavailable | None:
        """Return an error after ``watch`` found a file missing, else ``None``."""
        reason = self.watch.unavailable_reason
        return StoreUnavailable(f"{self.path}: {reason}; {REMEDY}") if reason else None


def _lock_of(path: Path) -> LockFile:
    """Return the lock at a path. Raises ``LockHeld`` after ``LOCK_SECONDS``, ``OSError``."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return LockFile(path)
        except LockHeld:
            if time.monotonic() > deadline:
                raise
        time.sleep(LOCK_INTERVAL)


def _acquire_lock(path: Path) -> LockFile:
    """Return the lock of the database's writer.

    Raises ``StoreUnavailable`` when another process has it, or the path cannot be a database.
    """
    if not path.parent.is_dir():
        raise StoreUnavailable(
            f"{path}: there is no directory {path.parent}; create it, or name another file"
        )
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a directory; name a file in it")
    try:
        return _lock_of(path.with_name(path.name + ".lock"))
    except LockHeld as held:
        raise StoreUnavailable(
            f"{path} is in use by process {held.pid}; stop that process, or give this server a "
            "database of its own"
        ) from None
    except UnsafeFile as error:
        raise StoreUnavailable(f"{path}: {error}") from None
    except OSError as error:
        raise StoreUnavailable(
            f"{path}: the directory {path.parent} cannot be written to ({error.strerror})"
        ) from error


def _make_private(path: Path) -> tuple[int, int]:
    """Create the database if missing; make sure that its files are safe to open, and private.

    Return its device and inode. The lock must be held, and no connection be open: closing a
    descriptor of the file would drop the connection's locks. Raises ``StoreUnavailable``.
    """
    try:
        for ending in ("-wal", "-shm", "-journal"):
            with suppress(FileNotFoundError):
                os.close(open_private(path.with_name(path.name + ending), creates=False))
        # SQLite creates its other files with the permissions of this one.
        descriptor = open_private(path, creates=True)
    except UnsafeFile as error:
        raise StoreUnavailable(str(error)) from None
    except OSError as error:
        name = error.filename or path
        raise StoreUnavailable(f"{name} cannot be written to ({error.strerror})") from error
    status = os.fstat(descriptor)
    os.close(descriptor)
    return status.st_dev, status.st_ino


def _watch(path: Path, lock: LockFile, identity: tuple[int, int]) -> FileWatch:
    """Return a watch over the files of an open database. Raises ``StoreUnavailable``."""
    wal, shm = path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")
    try:
        watch = FileWatch(
            {path: "database file", wal: "database's write-ahead log"},
            {shm: "database's index of the write-ahead log", lock.path: "database's lock file"},
        )
    except OSError as error:
        raise StoreUnavailable(f"{error.filename} was removed while {path} was opened") from error
    if watch.identity != identity:
        raise StoreUnavailable(f"{path} was replaced while it was opened; start again")
    return watch


def _open_writer(
    path: Path, schema: SqliteSchema, synchronous: str, busy_timeout: float, migrated: list[str]
) -> sqlite3.Connection:
    """Return the writer's connection, with the schema up to date. The lock must be held.

    Adds the migrations that it ran to ``migrated``. Raises ``StoreUnavailable``.
    """
    if sqlite3.sqlite_version_info < OLDEST:
        raise StoreUnavailable(
            f"SQLite {sqlite3.sqlite_version} is too old; {'.'.join(map(str, OLDEST))} or later "
            "is needed"
        )
    connection = sqlite3.connect(
        path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare(connection, path, schema, synchronous, migrated)
    except BaseException:
        connection.close()
        raise
    return connection


def _open_reader(path: Path, schema: SqliteSchema) -> sqlite3.Connection:
    """Return a connection that only reads. The writer must be open. Raises ``sqlite3.Error``."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=5.0,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.executescript(schema.sql("configure_reader"))
        if schema.configure is not None:
            schema.configure(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(
    connection: sqlite3.Connection,
    path: Path,
    schema: SqliteSchema,
    synchronous: str,
    migrated: list[str],
) -> None:
    if not _one(connection, "is_empty"):
        if _one(connection, "application_id") != schema.application_id:
            raise StoreUnavailable(
                f"{path} is a SQLite database of another program; name another file"
            )
        _check_integrity(connection, path)
    if _one(connection, "use_wal") != "wal":
        raise StoreUnavailable(
            f"{path}: this file system does not allow a write-ahead log (a network share?); "
            "name a file on a local disk"
        )
    connection.executescript(schema.sql("configure_writer", synchronous=synchronous))
    if schema.configure is not None:
        schema.configure(connection)
    migrated += _migrate(connection, path, schema)


def _check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    """Look for damage, for ``QUICK_CHECK_SECONDS``: a large file is not read to its end."""
    deadline = time.monotonic() + QUICK_CHECK_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
    try:
        found = _one(connection, "quick_check")
    except sqlite3.OperationalError as error:
        if code_of(error) != sqlite3.SQLITE_INTERRUPT:
            raise
        found = "ok"
        logger.info("%s is large: it was not checked for damage to its end", path)
    finally:
        connection.set_progress_handler(None, 0)
    if found != "ok":
        raise StoreUnavailable(
            f"{path}: the database is damaged ({found}); restore it from a backup, or move it "
            "away to begin with an empty one"
        )


def _migrate(connection: sqlite3.Connection, path: Path, schema: SqliteSchema) -> list[str]:
    """Bring the schema up to date, one transaction a migration; return those that ran."""
    migrated: list[str] = []
    connection.execute(CONNECTION_SQL["create_versions"])
    current = _one(connection, "version")
    known = schema.migrations()
    if current > known[-1].version:
        raise StoreUnavailable(
            f"{path} has schema version {current}, written by a later version of Parley; this "
            f"one knows up to {known[-1].version}: upgrade it, or name another file"
        )
    if not current:
        logger.info("%s: new, with schema version %d", path, known[-1].version)
    level = logging.INFO if current else logging.DEBUG
    for version, name, sql in known:
        if version > current:
            logger.log(level, "%s: bringing the schema to version %d (%s)", path, version, name)
            try:
                connection.executescript(f"BEGIN IMMEDIATE;\n{sql}")
                if (step := schema.steps.get(version)) is not None:
                    step(connection)
                connection.execute(CONNECTION_SQL["add_version"], (version, name))
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            migrated.append(f"{version} {name}")
    return migrated


def _one(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(CONNECTION_SQL[name]).fetchone()[0]
