"""The administration of a SQLite store."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from parley.database.sql import Migration, filled
from parley.database.sqlite.file import CONNECTION_SQL, explain
from parley.security.api_keys import ApiKeyRecord, checked
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
from parley.store.admin.export_format import ExportSource, ImportTarget
from parley.store.audit.reading import DECISION, TOOL_CALL, AuditReading
from parley.store.audit.trail import AuditEntry, AuditLine, AuditPrune
from parley.store.events import now_ms
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.tables import SECRET_BYTES, checked_event
from parley.store.protocols.webhooks import SuspendedWebhook, WebhookFilter
from parley.store.sql import queries
from parley.store.sqlite.batch import SqliteBatch, change
from parley.store.sqlite.file import ADMIN_SQL, APPLICATION_ID, SCHEMA, SQL, TaskFile
from parley.store.sqlite.operator import (
    AuditAnswer,
    AuditQuestion,
    KeysAnswer,
    KeysQuestion,
    ask_about_audit,
    ask_about_keys,
    ask_to_complete,
    ask_to_resume,
    suspended_in,
)

T = TypeVar("T")

_READ = ADMIN_SQL | {name: SQL[name] for name in ("api_keys", "usage")}
_WRITE = queries("sqlite", "admin.sql")
_AUDIT = filled(
    queries("shared", "audit.sql"),
    {
        "schema": "",
        "?": "?",
        "facts": " OR ".join(
            f"CAST(substr(l.payload, 1, {len(each)}) AS TEXT) = '{each}'"
            for each in (DECISION, TOOL_CALL)
        ),
    },
)
_OWNERS = owner_statements(":{}", find="instr", chr="char", version="", slot="", schema="")

BUSY_SECONDS = 5.0


class SqliteAdmin(StoreAdmin):
    """The administration of the SQLite file at ``path``.

    Methods that read work while another process has the file open. For changes, they ask that
    process, if it listens.
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
        """Create the schema, or bring it up to date; return the migrations done."""
        missing = self.schema().missing
        if missing:
            with self._open():
                pass
        return missing

    def assign(self, owners: OwnerAssignment) -> Owned:
        """Assign that to an issuer; return how much it was."""
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
                lambda name: connection.execute(_READ[name]), now=now_ms(), size=size, replicas=None
            )

    def now(self) -> int:
        """Return the time, in ms."""
        return now_ms()

    def resume(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Resume suspended webhooks; return which."""

        def resume(batch: SqliteBatch) -> Sequence[SuspendedWebhook]:
            found = suspended_in(batch.connection, which)
            batch.resume_pushes(found)
            return found

        return self._asked_or(lambda: ask_to_resume(self._path, which), resume)

    def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; return whether it was not complete before."""
        value = checked_event(key, value)
        return self._asked_or(
            lambda: ask_to_complete(self._path, agent, key, value),
            lambda batch: batch.complete_event(agent, key, value),
        )

    def secret(self, name: str) -> bytes:
        """Return the secret of a name; the first call makes it."""
        fresh = os.urandom(SECRET_BYTES)
        return self._asked_or(
            lambda: ask_about_keys(self._path, KeysQuestion("secret", name)),
            lambda batch: KeysAnswer(batch.secret(name, fresh)),
        ).secret

    def add_api_key(self, record: ApiKeyRecord) -> None:
        """Store an API key."""
        checked(record)

        def add(batch: SqliteBatch) -> KeysAnswer:
            batch.add_api_key(record)
            return KeysAnswer()

        self._asked_or(lambda: ask_about_keys(self._path, KeysQuestion("add", record=record)), add)

    def end_api_key(
        self, id: str, *, expires_at: int | None = None, revoked_at: int | None = None
    ) -> ApiKeyRecord | None:
        """Have an API key end earlier, and return it."""
        question = KeysQuestion("end", id, expires_at=expires_at, revoked_at=revoked_at)
        return self._asked_or(
            lambda: ask_about_keys(self._path, question),
            lambda batch: KeysAnswer(record=batch.end_api_key(id, expires_at, revoked_at)),
        ).record

    def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append entries to the audit."""
        return self._asked_or(
            lambda: ask_about_audit(self._path, AuditQuestion(entries)),
            lambda batch: AuditAnswer(batch.append_audit(entries)),
        ).lines

    def prune_audit(self, prune: AuditPrune) -> int:
        """Remove old lines of the audit, and append a checkpoint; return how many went."""
        return self._asked_or(
            lambda: ask_about_audit(self._path, AuditQuestion((), prune)),
            lambda batch: AuditAnswer(removed=batch.prune_audit(prune)),
        ).removed

    @contextmanager
    def audit(self) -> Iterator[AuditReading]:
        """Read who did what as of the moment when this begins."""
        with self._reading() as connection:
            yield AuditReading(lambda name, values: connection.execute(_AUDIT[name], values))

    def _asked_or(self, ask: Callable[[], T | None], otherwise: Callable[[SqliteBatch], T]) -> T:
        """Ask the process that has the file open; without one, change the file."""
        answer = ask()
        if answer is not None:
            return answer
        try:
            with self._open() as file:
                try:
                    return change(file, otherwise, now_ms())
                except sqlite3.Error as error:
                    raise explain(error, self._path) from error
        except StoreUnavailable:  # a server that has only just opened it can be asked by now
            answer = ask()
            if answer is None:
                raise
            return answer

    @contextmanager
    def reading(self) -> Iterator[ExportSource]:
        """Read the store as of the moment when this begins."""
        with self._reading() as connection:
            yield ExportSource(lambda name: connection.execute(_READ[name]))

    @contextmanager
    def writing(self) -> Iterator[SqliteImportTarget]:
        """Write to the store, after bringing its schema up to date."""
        with self._open() as file:
            try:
                yield SqliteImportTarget(file)
            except sqlite3.Error as error:
                raise explain(error, self._path) from error

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
            return connection.execute(_READ[name], values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Read as of one moment, and write nothing; another process may have the file open."""
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


class SqliteImportTarget(ImportTarget):
    """A SQLite store to import into."""

    def __init__(self, file: TaskFile) -> None:
        super().__init__()
        self._connection = file.writer
        self._last_key = file.last_key
        (self._last_context,) = self._connection.execute(_WRITE["last_context"]).fetchone()

    def there(self, table: str, names: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
        """Return the keys, out of some, that the rows of a table have."""
        wanted = msgspec.json.encode(names).decode()
        return set(self._connection.execute(_WRITE[f"{table}_there"], (wanted,)))

    def add(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add new rows to a table."""
        self._execute(f"add_{table}", rows)

    def _context_keys(self, count: int) -> Iterable[int]:
        first = self._last_context + 1
        self._last_context += count
        return range(first, self._last_context + 1)

    def _task_key(self) -> int:
        self._last_key += 1
        return self._last_key

    def _add_waits(self, waits: Sequence[tuple[int, str, str]]) -> None:
        self.add("waits", waits)
        self._execute("wake_for_events", [(key,) for key in {key for key, _, _ in waits}])

    def _set_stored(self, rows: Sequence[tuple[int, bool, int, int]]) -> None:
        self._execute("set_stored", rows)

    def _commit(self, counts: Sequence[tuple[Any, ...]]) -> None:
        self._execute("count_tasks", counts)
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")

    def _execute(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows and not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_WRITE[name], rows)


def _about_owners(connection: sqlite3.Connection) -> Execute:
    return lambda name, values: connection.execute(_OWNERS[name], values).fetchall()


def _version(connection: sqlite3.Connection) -> int:
    if not connection.execute(CONNECTION_SQL["has_versions"]).fetchone()[0]:
        return 0
    version: int = connection.execute(CONNECTION_SQL["version"]).fetchone()[0]
    return version
