"""The administration of a SQLite store."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from parley.database.sqlite.file import CONNECTION_SQL, explain
from parley.security.api_keys import ApiKeyRecord, checked
from parley.store.admin.admin import (
    Prunable,
    SchemaStatus,
    Survey,
    context_rows,
    event_row,
    head_row,
    lines_of,
    push_row,
    receipt_row,
    record_row,
    survey_of,
    wait_rows,
)
from parley.store.admin.export_format import (
    ContextMessage,
    ContextValue,
    ExportedContext,
    ExportedEvent,
    ExportedPush,
    ExportedReceipt,
    ExportedRecord,
    ExportedTask,
    ExportLine,
)
from parley.store.admin.owners import Execute, Owned, OwnerAssignment, assign, unassigned
from parley.store.api_keys import record_of
from parley.store.audit.reading import DECISION, TOOL_CALL, AuditReading
from parley.store.events import now_ms
from parley.store.protocols.audit import AuditEntry, AuditLine, AuditPrune
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.secrets import SECRET_BYTES
from parley.store.protocols.timers import checked_event
from parley.store.protocols.usage import UsageQuery, UsageRow
from parley.store.protocols.webhooks import SuspendedWebhook, WebhookFilter
from parley.store.snapshot import StoredForm
from parley.store.sql import Migration, filled, migrations, queries
from parley.store.sqlite import api_keys, audit
from parley.store.sqlite.file import ADMIN_SQL, APPLICATION_ID, SQL, TaskFile
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
from parley.store.sqlite.timers import complete_in
from parley.store.usage import query_values, usage_row

T = TypeVar("T")

_READ = ADMIN_SQL
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
_OWNERS = {
    "{find}": "instr",
    "{chr}": "char",
    "{version}": "",
    "{slot}": "",
    "{schema}": "",
    "{value}": ":name",
}

BUSY_SECONDS = 5.0


class SqliteAdmin:
    """The administration of the SQLite file at ``path``.

    Methods that only read work while another process has the file open; those that write do not.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    @property
    def name(self) -> str:
        """The path of the file."""
        return str(self._path)

    def schema(self) -> SchemaStatus:
        """Return the version of the schema. Changes nothing."""
        known = migrations("sqlite")
        if not self._path.exists() or self._path.stat().st_size == 0:
            return SchemaStatus(0, known)
        version = self._read(_version)
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

    def unassigned(self, owners: OwnerAssignment) -> Owned:
        """Return how much belongs to owners without an issuer."""
        return self._read(lambda connection: unassigned(_execute(connection), owners))

    def assign(self, owners: OwnerAssignment) -> Owned:
        """Assign that to an issuer; return how much it was."""
        with self._open() as file:
            try:
                file.writer.execute("BEGIN IMMEDIATE")
                assigned = assign(_execute(file.writer), owners)
                file.writer.execute("COMMIT")
            except sqlite3.Error as error:
                raise explain(error, self._path) from error
            return assigned

    def survey(self) -> Survey:
        """Return the store's status."""
        size = sum([os.path.getsize(file) for file in self._files() if file.exists()])

        def look(connection: sqlite3.Connection) -> Survey:
            return survey_of(
                lambda name: connection.execute(_READ[name]), now=now_ms(), size=size, replicas=None
            )

        return self._read(look)

    def agents(self) -> Sequence[str]:
        """Return the keys of the agents that have anything in the store."""
        return [agent for (agent,) in self._read(lambda c: c.execute(_READ["agents"]).fetchall())]

    def prunable(self, agent: str, before: int) -> Prunable:
        """Return how much of an agent is older than a time (ms) and may be removed."""

        def look(connection: sqlite3.Connection) -> Prunable:
            tasks, events = connection.execute(_READ["old_tasks"], (agent, before)).fetchone()
            (receipts,) = connection.execute(_READ["old_receipts"], (agent, before)).fetchone()
            return Prunable(tasks, events, receipts)

        return self._read(look)

    def now(self) -> int:
        """Return the time, in ms."""
        return now_ms()

    def suspended(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Return the suspended webhooks."""
        return self._read(lambda connection: suspended_in(connection, which))

    def waiting(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Return the active webhooks that wait for their receivers."""
        return self._read(lambda connection: suspended_in(connection, which, "waiting"))

    def resume(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Resume suspended webhooks; return which.

        Asks the process that has the file open; without one, changes the file.
        """
        resumed = ask_to_resume(self._path, which)
        if resumed is not None:
            return resumed
        with self._open() as file:
            try:
                found = suspended_in(file.writer, which)
                file.writer.execute("BEGIN IMMEDIATE")
                rows = [(each.key, each.id) for each in found]
                file.writer.executemany(SQL["resume_push"], rows)
                file.writer.execute("COMMIT")
            except sqlite3.Error as error:
                raise explain(error, self._path) from error
        return found

    def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; return whether it was not complete before.

        Asks the process that has the file open; without one, changes the file.
        """
        value = checked_event(key, value)
        completed = ask_to_complete(self._path, agent, key, value)
        if completed is not None:
            return completed
        try:
            with self._open() as file:
                try:
                    return complete_in(file.writer, agent, key, value, now_ms())
                except sqlite3.Error as error:
                    raise explain(error, self._path) from error
        except StoreUnavailable:  # a server that has only just opened it can be asked by now
            completed = ask_to_complete(self._path, agent, key, value)
            if completed is None:
                raise
            return completed

    def secret(self, name: str) -> bytes:
        """Return the secret of a name; the first call makes it."""
        fresh = os.urandom(SECRET_BYTES)
        question = KeysQuestion("secret", name)
        return self._about_keys(
            question, lambda connection: KeysAnswer(api_keys.secret_in(connection, name, fresh))
        ).secret

    def add_api_key(self, record: ApiKeyRecord) -> None:
        """Store an API key."""
        checked(record)

        def add(connection: sqlite3.Connection) -> KeysAnswer:
            api_keys.add_in(connection, record, now_ms())
            return KeysAnswer()

        self._about_keys(KeysQuestion("add", record=record), add)

    def api_keys(self, owner: str = "") -> Sequence[ApiKeyRecord]:
        """Return all API keys, or those of an owner, the oldest first."""
        rows = self._read(
            lambda connection: connection.execute(SQL["api_keys"], {"owner": owner}).fetchall()
        )
        return [record_of(row) for row in rows]

    def end_api_key(
        self, id: str, *, expires_at: int | None = None, revoked_at: int | None = None
    ) -> ApiKeyRecord | None:
        """Have an API key end earlier, and return it."""
        question = KeysQuestion("end", id, expires_at=expires_at, revoked_at=revoked_at)
        return self._about_keys(
            question,
            lambda connection: KeysAnswer(
                record=api_keys.end_in(connection, id, expires_at, revoked_at)
            ),
        ).record

    def usage(self, query: UsageQuery) -> Sequence[UsageRow]:
        """Return what was used, the latest days first."""
        values = query_values(query)
        rows = self._read(lambda connection: connection.execute(SQL["usage"], values).fetchall())
        return [usage_row(row) for row in rows]

    def _about_keys(
        self, question: KeysQuestion, otherwise: Callable[[sqlite3.Connection], KeysAnswer]
    ) -> KeysAnswer:
        """Ask the process that has the file open; without one, change the file."""
        return self._asked_or(lambda: ask_about_keys(self._path, question), otherwise)

    def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append entries to the audit."""
        question = AuditQuestion(entries)
        return self._asked_or(
            lambda: ask_about_audit(self._path, question),
            lambda connection: AuditAnswer(audit.append_in(connection, entries, now_ms())),
        ).lines

    def prune_audit(self, prune: AuditPrune) -> int:
        """Remove old lines of the audit, and append a checkpoint; return how many went."""
        question = AuditQuestion((), prune)
        return self._asked_or(
            lambda: ask_about_audit(self._path, question),
            lambda connection: AuditAnswer(removed=audit.prune_in(connection, prune, now_ms())),
        ).removed

    @contextmanager
    def audit(self) -> Iterator[AuditReading]:
        """Read who did what as of the moment when this begins."""
        with self._reading() as connection:
            yield AuditReading(lambda name, values: connection.execute(_AUDIT[name], values))

    def _asked_or(
        self, ask: Callable[[], T | None], otherwise: Callable[[sqlite3.Connection], T]
    ) -> T:
        """Ask the process that has the file open; without one, change the file."""
        answer = ask()
        if answer is not None:
            return answer
        try:
            with self._open() as file:
                try:
                    return otherwise(file.writer)
                except sqlite3.Error as error:
                    raise explain(error, self._path) from error
        except StoreUnavailable:  # a server that has only just opened it can be asked by now
            answer = ask()
            if answer is None:
                raise
            return answer

    @contextmanager
    def reading(self) -> Iterator[SqliteExportSource]:
        """Read the store as of the moment when this begins."""
        with self._reading() as connection:
            yield SqliteExportSource(connection)

    @contextmanager
    def writing(self) -> Iterator[SqliteImportTarget]:
        """Write to the store, after bringing its schema up to date."""
        with self._open() as file:
            try:
                yield SqliteImportTarget(file)
            except sqlite3.Error as error:
                raise explain(error, self._path) from error

    def _files(self) -> list[Path]:
        return [self._path, self._path.with_name(self._path.name + "-wal")]

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

    def _read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        with self._reading() as connection:
            return function(connection)

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


class SqliteExportSource:
    """A SQLite store to export."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def lines(self) -> Iterator[ExportLine]:
        """Yield all lines of the export."""
        return lines_of(lambda name: self._connection.execute(_READ[name]))


class SqliteImportTarget:
    """A SQLite store to import into."""

    def __init__(self, file: TaskFile) -> None:
        self._connection = file.writer
        self._last_key = file.last_key
        (self._last_context,) = self._connection.execute(_WRITE["last_context"]).fetchone()
        self._keys: dict[str, int] = {}
        self._agents: dict[str, str] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()

    def contexts_there(self, contexts: Sequence[ExportedContext]) -> set[tuple[str, str, str, str]]:
        """Return the keys of those that the store has."""
        return set(self._find("contexts_there", [context.name for context in contexts]))

    def receipts_there(self, receipts: Sequence[ExportedReceipt]) -> set[tuple[str, str, str, str]]:
        """Return the keys of those that the store has."""
        return set(self._find("receipts_there", [receipt.name for receipt in receipts]))

    def events_there(self, events: Sequence[ExportedEvent]) -> set[tuple[str, str]]:
        """Return the keys of those that the store has."""
        found = self._find("events_there", [event.name for event in events])
        return {(agent, name) for agent, name in found}

    def tasks_there(self, tasks: Sequence[ExportedTask]) -> set[str]:
        """Return the ids of those that the store has."""
        return {task_id for (task_id,) in self._find("tasks_there", [t.task_id for t in tasks])}

    def add_contexts(
        self,
        contexts: Sequence[ExportedContext],
        messages: Sequence[Sequence[ContextMessage]],
        values: Sequence[Sequence[ContextValue]],
    ) -> None:
        """Add contexts, with the messages and the values of each."""
        first = self._last_context + 1
        self._last_context += len(contexts)
        keys = range(first, self._last_context + 1)
        rows, message_rows, value_rows = context_rows(keys, contexts, messages, values)
        self._add("add_context", rows)
        self._add("add_message", message_rows)
        self._add("add_value", value_rows)

    def add_receipts(self, receipts: Sequence[ExportedReceipt]) -> None:
        """Add receipts."""
        self._add("add_receipt", [receipt_row(receipt) for receipt in receipts])

    def add_events(self, events: Sequence[ExportedEvent]) -> None:
        """Add events."""
        self._add("add_event", [event_row(event) for event in events])

    def add_tasks(self, tasks: Sequence[ExportedTask]) -> None:
        """Add tasks, in this order."""
        for task in tasks:
            self._last_key += 1
            self._keys[task.task_id] = self._last_key
            self._agents[task.task_id] = task.agent
            self._counts[task.agent, task.tenant, task.owner, task.state.value] += 1
        self._add("add_task", [head_row(self._keys[task.task_id], task) for task in tasks])
        if waits := wait_rows(self._keys, tasks):
            self._add("add_wait", waits)
            self._add("wake_for_events", [(key,) for key in {row[0] for row in waits}])

    def add_records(self, records: Sequence[tuple[str, ExportedRecord]]) -> None:
        """Add records to logs."""
        self._add("add_record", [record_row(self._keys[id], record) for id, record in records])

    def add_pushes(self, pushes: Sequence[tuple[str, str, ExportedPush]]) -> None:
        """Add webhooks."""
        rows = [
            push_row(self._keys[id], self._agents[id], push_id, push)
            for id, push_id, push in pushes
        ]
        self._add("add_push", rows)

    def add_stored(self, forms: Sequence[tuple[str, int, StoredForm]]) -> None:
        """Store the stored form of tasks."""
        for task_id, seq, form in forms:
            key = self._keys[task_id]
            self._add("add_task_message", form.message_rows(key))
            self._add("add_task_artifact", form.artifact_rows(key, seq))
            row = (len(form.messages), form.has_status_message, seq, key)
            self._add("set_stored", [row])

    def commit(self) -> None:
        """Make the additions durable."""
        self._add("count_tasks", [(*name, n) for name, n in sorted(self._counts.items())])
        self._counts.clear()
        self._keys.clear()
        self._agents.clear()
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")

    def _find(self, name: str, names: Sequence[Any]) -> list[tuple[Any, ...]]:
        wanted = msgspec.json.encode(names).decode()
        return self._connection.execute(_WRITE[name], (wanted,)).fetchall()

    def _add(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows and not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_WRITE[name], rows)


def _execute(connection: sqlite3.Connection) -> Execute:
    return Execute(_OWNERS, lambda sql, values: connection.execute(sql, values).fetchall())


def _version(connection: sqlite3.Connection) -> int:
    if not connection.execute(CONNECTION_SQL["has_versions"]).fetchone()[0]:
        return 0
    version: int = connection.execute(CONNECTION_SQL["version"]).fetchone()[0]
    return version
