"""Opens a SQLite database: locked, checked for damage, and with its schema up to date.

One connection writes, and only this connection moves the write-ahead log into the database file. So
the WAL-reset bug of SQLite before 3.51.3, which needs two such connections, cannot occur. The lock
file keeps other processes from opening a second one.

A symbolic link to the database is resolved once, by the caller. The files are opened through no
link, have one name, and are private to their owner. While the database is open they are watched:
writes to a deleted file would be lost.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from parley.database.errors import StoreUnavailable
from parley.database.sql import Migration, SqlFiles, filled
from parley.database.sqlite.private_file import LockFile, LockHeld, UnsafeFile, open_private

logger = logging.getLogger(__name__)

FOLDER = "sqlite"
"""The folder of an application's SQL files that are for SQLite."""

CACHE_KIB = 32 * 1024
QUICK_CHECK_SECONDS = 2.0
WAL_BYTES = 64 << 20

LOCK_SECONDS = 1.0
"""The time to wait for the lock: a command, or ``parley.complete``, may hold the file briefly, and
must not keep a server from starting.
"""

LOCK_INTERVAL = 0.02

CONNECTION_SQL = SqlFiles("parley.database").queries("sqlite", "connection.sql")
OLDEST = (3, 35, 0)

REMEDY = "put the same file back, or restart the server to continue with the present file"

Synchronous = Literal["FULL", "NORMAL"]
"""Durability of commits: after a power cut, or only after the end of the process."""


class SqliteSchema(msgspec.Struct, frozen=True):
    """The schema of an application's SQLite files.

    ``application_id`` marks its files: other files are rejected. Its migrations are in ``files``;
    ``steps`` are Python functions of migrations in addition to their SQL, in the same transaction.
    """

    application_id: int
    files: SqlFiles
    steps: Mapping[int, Callable[[sqlite3.Connection], object]] = {}

    def migrations(self) -> list[Migration]:
        """Return the migrations, in order."""
        return self.files.migrations(FOLDER)

    def sql(self, name: str, **words: object) -> str:
        """Return a statement about connections, for this schema."""
        words |= {
            "application_id": self.application_id,
            "cache_kib": CACHE_KIB,
            "wal_bytes": WAL_BYTES,
        }
        return filled({"": CONNECTION_SQL[name]}, words)[""]


def code_of(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, 0 when the error is not SQLite's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def explain(error: sqlite3.Error, path: Path) -> StoreUnavailable:
    """Return an error that names the fault of the database, and the remedy."""
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    reasons = {
        sqlite3.SQLITE_FULL: "the disk is full; make room on it",
        sqlite3.SQLITE_IOERR: "the disk cannot read or write the data; it may be full, over "
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

    ``path`` is resolved. ``opened`` is called with the writer's connection after migrations, before
    any read. A write waits ``busy_timeout`` seconds for another program's lock. Opening blocks:
    call it in a thread. Raises ``StoreUnavailable``.
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
        self._opened: list[sqlite3.Connection] = []
        self.lock = _acquire_lock(path)
        try:
            identity = _make_private(path)
            self.writer = _open_writer(path, schema, synchronous, busy_timeout)
            self._opened.append(self.writer)
            self.migrated = _migrate(self.writer, path, schema)
            if opened is not None:
                opened(self.writer)
            for _ in range(readers):
                self.readers.append(_open_reader(path, schema))
            self.watch = _watch(path, self.lock, identity)
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                raise explain(error, path) from error
            raise

    def close(self) -> None:
        """Close the connections and release the lock, after all threads have stopped using them."""
        try:
            for connection in (*self.readers, *self._opened):
                connection.close()
        finally:
            self.lock.release()

    def unavailable(self) -> StoreUnavailable | None:
        """Return an error after ``watch`` found a file missing, else ``None``."""
        reason = self.watch.unavailable_reason
        return StoreUnavailable(f"{self.path}: {reason}; {REMEDY}") if reason else None


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
    deadline = time.monotonic() + LOCK_SECONDS
    try:
        while True:
            try:
                return LockFile(path.with_name(path.name + ".lock"))
            except LockHeld as held:
                if time.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"{path} is in use by process {held.pid}; stop that process, or give this "
                        "server a database of its own"
                    ) from None
            time.sleep(LOCK_INTERVAL)
    except UnsafeFile as error:
        raise StoreUnavailable(f"{path}: {error}") from None
    except OSError as error:
        raise StoreUnavailable(
            f"{path}: the directory {path.parent} cannot be written to ({error.strerror})"
        ) from error


def _make_private(path: Path) -> tuple[int, int]:
    """Create the database if it is missing; make sure that its files are safe to open, and private.

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
    path: Path, schema: SqliteSchema, synchronous: str, busy_timeout: float
) -> sqlite3.Connection:
    """Return the writer's connection. The lock must be held. Raises ``StoreUnavailable``."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise StoreUnavailable(
            f"SQLite {sqlite3.sqlite_version} is too old; {'.'.join(map(str, OLDEST))} or later "
            "is needed"
        )
    connection = sqlite3.connect(
        path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
    )
    try:
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
    except BaseException:
        connection.close()
        raise
    return connection


def _check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    """Check for damage, for ``QUICK_CHECK_SECONDS``: a large file is not checked to its end."""
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
        # The quick check of SQLite 3.40 reports a NULL in intact tables WITHOUT ROWID whose key has
        # another column order. The full check decides.
        found = _one(connection, "integrity_check")
    if found != "ok":
        raise StoreUnavailable(
            f"{path}: the database is damaged ({found}); restore it from a backup, or move it "
            "away to begin with an empty one"
        )


def _migrate(connection: sqlite3.Connection, path: Path, schema: SqliteSchema) -> list[str]:
    """Migrate the schema, one transaction per migration; return the executed migrations."""
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
        logger.debug("%s: new, with schema version %d", path, known[-1].version)
    level = logging.INFO if current else logging.DEBUG
    for version, name, sql in known:
        if version > current:
            logger.log(level, "%s: bringing the schema to version %d (%s)", path, version, name)
            with undone_on_error(connection):
                connection.executescript(f"BEGIN IMMEDIATE;\n{sql}")
                if (step := schema.steps.get(version)) is not None:
                    step(connection)
                connection.execute(CONNECTION_SQL["add_version"], (version, name))
                connection.execute("COMMIT")
            migrated.append(f"{version} {name}")
    return migrated


@contextmanager
def undone_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Roll back the transaction, if there is one, when an error ends the block."""
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # SQLite may have rolled back by itself
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def _one(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(CONNECTION_SQL[name]).fetchone()[0]


class _File(NamedTuple):
    path: str
    role: str
    identity: tuple[int, int]


class FileWatch:
    """Checks whether files were removed, moved or replaced since this object was made.

    ``data`` and ``others`` give each file's role; the first of ``data`` is the database, the last
    its write-ahead log. ``unavailable_reason`` is the result of the last check, empty when all
    files are present; callers may see it, so it names no path. The file is available again when the
    same files are back. A check is one system call per file, made by one thread. It opens nothing:
    closing a file of a SQLite database would drop this process's locks on it.

    Raises ``OSError`` when a file is missing.
    """

    def __init__(self, data: Mapping[Path, str], others: Mapping[Path, str]) -> None:
        self.unavailable_reason = ""
        self.size = 0
        """The size of the write-ahead log in bytes, at the last check."""
        self._data = [_file(path, role) for path, role in data.items()]
        self._all = self._data + [_file(path, role) for path, role in others.items()]
        self.identity = self._data[0].identity
        """The device and the inode of the database."""
        self._is_linked = False

    def check(self, *, data_only: bool = False) -> str:
        """Check all files, or the data files if all is well; return ``unavailable_reason``."""
        found = ""
        size = links = 0
        files = self._data if data_only and not self.unavailable_reason else self._all
        for number, (path, role, identity) in enumerate(files):
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                found = f"the {role} was removed or moved away while it is in use"
                break
            except OSError as error:
                found = f"the {role} cannot be looked at any more ({error.strerror})"
                break
            if (status.st_dev, status.st_ino) != identity:
                found = f"another file has replaced the {role} while it is in use"
                break
            if number < len(self._data):
                size = status.st_size
            links = links or status.st_nlink
        else:
            self.size = size
        if links > 1 and not self._is_linked:
            logger.warning(
                "%s has a second name now: opening it by that name while it is in use damages it",
                self._data[0].path,
            )
        self._is_linked = links > 1
        if found and not self.unavailable_reason:
            logger.error("%s: %s; %s", self._data[0].path, found, REMEDY)
        elif self.unavailable_reason and not found:
            logger.warning("%s: the files are present again", self._data[0].path)
        self.unavailable_reason = found
        return found


def _file(path: Path, role: str) -> _File:
    status = os.lstat(path)
    return _File(str(path), role, (status.st_dev, status.st_ino))
