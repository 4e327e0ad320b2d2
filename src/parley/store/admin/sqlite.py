"""The administration of a SQLite store."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from parley.database.sql import Migration
from parley.database.sqlite.file import CONNECTION_SQL, explain
from parley.store.admin.admin import (
    Execute,
    Owned,
    OwnerAssignment,
    SchemaStatus,
    StoreAdmin,
    Survey,
    Values,
    assign,
    owner_statements,
    survey_of,
)
from parley.store.admin.transfer import ExportSource
from parley.store.audit.reading import AuditReading
from parley.store.events import now_ms
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.tables import checked_event
from parley.store.protocols.webhooks import SuspendedWebhook, WebhookFilter
from parley.store.sqlite.batch import SqliteBatch, change
from parley.store.sqlite.file import ADMIN_SQL, APPLICATION_ID, AUDIT_SQL, SCHEMA, TaskFile
from parley.store.sqlite.operator import ask, suspended_in
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.sqlite.tables import SqliteRows

T = TypeVar("T")

_OWNERS = owner_statements(":{}", find="instr", chr="char", version="", slot="", schema="")

BUSY_SECONDS = 5.0


class SqliteAdmin(StoreAdmin):
    """The administration of the SQLite file at ``path``.

    Reading works while another process has the file open. Changes are requested from that process,
    if it listens.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    @property
    def name(self) -> str:
        """The path of the file."""
        return str(self._path)

    def schema(self) -> SchemaStatus:
        """Return the version of the schema. Changes nothing."""
        known = SCHEMA.migrations()
        if not self._path.exists() or self._path.stat().st_size == 0:
            return SchemaStatus(0, known)
        with self._reading() as connection:
            version = _version(connection)
        if version > known[-1].version:
            raise StoreUnavailable(
                f"{self._path} has schema version {version}, written by a later version of Parley; "
                f"this one knows up to {known[-1].version}: upgrade it"
            )
        return SchemaStatus(version, [each for each in known if each.version > version])

    def migrate(self) -> Sequence[Migration]:
        """Create or migrate the schema; return the executed migrations."""
        missing = self.schema().missing
        if missing:
            with self._open():
                pass
        return missing

    def assign(self, owners: OwnerAssignment) -> Owned:
        """Assign owners to an issuer; return the amount."""
        with self._open() as file:
            try:
                file.writer.execute("BEGIN IMMEDIATE")
                assigned = assign(_about_owners(file.writer), owners)
                file.writer.execute("COMMIT")
            except sqlite3.Error as error:
                raise explain(error, self._path) from error
            return assigned

    @contextmanager
    def _owners(self) -> Iterator[Execute]:
        with self._reading() as connection:
            yield _about_owners(connection)

    def survey(self) -> Survey:
        """Return the store's status."""
        files = [self._path, self._path.with_name(self._path.name + "-wal")]
        size = sum([os.path.getsize(file) for file in files if file.exists()])
        with self._reading() as connection:
            return survey_of(
                lambda name: connection.execute(ADMIN_SQL[name]),
                now=now_ms(),
                size=size,
                replicas=None,
            )

    def now(self) -> int:
        """Return the time, in ms."""
        return now_ms()

    def resume(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Resume suspended webhooks; return these."""

        def resume(batch: SqliteBatch) -> Sequence[SuspendedWebhook]:
            found = suspended_in(batch.connection, which)
            batch.resume_pushes(found)
            return found

        return self._asked_or(resume, "resume", which)

    def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; return ``False`` if it was complete before."""
        value = checked_event(key, value)
        return self._asked_or(
            lambda batch: batch.complete_event(agent, key, value),
            *("complete_event", agent, key, value),
        )

    @contextmanager
    def audit(self) -> Iterator[AuditReading]:
        """Open the audit for reading, at the present moment."""
        with self._reading() as connection:
            yield AuditReading(lambda name, values: connection.execute(AUDIT_SQL[name], values))

    def _asked_or(self, otherwise: Callable[[SqliteBatch], T], name: str, *arguments: Any) -> T:
        """Ask the process that has the file open; if there is none, change the file."""
        if answer := ask(self._path, name, arguments):
            return cast("T", answer[0])
        try:
            with self._open() as file:
                try:
                    return change(file, otherwise, now_ms())
                except sqlite3.Error as error:
                    raise explain(error, self._path) from error
        except StoreUnavailable:  # a server that has just opened the file may be listening now
            if answer := ask(self._path, name, arguments):
                return cast("T", answer[0])
            raise

    def _change_rows(self, work: Callable[..., T], *arguments: Any) -> T:
        """Ask the process that has the file open for ``work``, by its name in ``CALLS``."""
        return self._asked_or(
            lambda batch: work(batch.rows(), *arguments), work.__name__, *arguments
        )

    def _store(self) -> SqliteTaskStore:
        return SqliteTaskStore(self._path)

    def _read_rows(self, work: Callable[[SqliteRows], T]) -> T:
        with self._reading() as connection:
            return work(SqliteRows(connection, now_ms()))

    @contextmanager
    def reading(self) -> Iterator[ExportSource]:
        """Open the store for reading, at the present moment."""
        with self._reading() as connection:
            yield ExportSource(lambda name: connection.execute(ADMIN_SQL[name]))

    @contextmanager
    def _open(self) -> Iterator[TaskFile]:
        """Lock the file for this process, with its schema up to date."""
        file = TaskFile(self._path, "FULL", BUSY_SECONDS, 0)
        try:
            yield file
        finally:
            try:
                if file.writer.in_transaction:
                    with suppress(sqlite3.Error):
                        file.writer.execute("ROLLBACK")
                file.writer.close()
            finally:
                file.lock.release()

    def _rows(self, name: str, values: Values = ()) -> Sequence[Sequence[Any]]:
        with self._reading() as connection:
            return connection.execute(ADMIN_SQL[name], values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read-only connection at one moment; another process may have the file open."""
        if not self._path.is_file():
            raise StoreUnavailable(f"{self._path}: there is no such file")
        try:
            connection = sqlite3.connect(
                f"{self._path.as_uri()}?mode=ro",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
            )
            try:
                connection.execute("BEGIN")
                (mark,) = connection.execute(CONNECTION_SQL["application_id"]).fetchone()
                if mark != APPLICATION_ID:
                    raise StoreUnavailable(f"{self._path} is no store of Parley's")
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise explain(error, self._path) from error


def _about_owners(connection: sqlite3.Connection) -> Execute:
    return lambda name, values: connection.execute(_OWNERS[name], values).fetchall()


def _version(connection: sqlite3.Connection) -> int:
    if not connection.execute(CONNECTION_SQL["has_versions"]).fetchone()[0]:
        return 0
    version: int = connection.execute(CONNECTION_SQL["version"]).fetchone()[0]
    return version
