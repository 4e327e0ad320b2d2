"""The administration of a PostgreSQL store."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg

from parley.database.postgres.connection import Address, explain
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
from parley.store.postgres import api_keys, audit
from parley.store.postgres.keys import KEY_EPOCH, KEYS_A_MS, WRITERS
from parley.store.postgres.schema import SCHEMA, sql_for
from parley.store.protocols.audit import AuditEntry, AuditLine, AuditPrune
from parley.store.protocols.claims import Replica
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.secrets import SECRET_BYTES
from parley.store.protocols.timers import EventCompleted, checked_event
from parley.store.protocols.usage import UsageQuery, UsageRow
from parley.store.protocols.webhooks import SuspendedWebhook, WebhookFilter
from parley.store.pushes import suspended_of
from parley.store.snapshot import StoredForm
from parley.store.sql import Migration, filled, queries
from parley.store.usage import query_values, usage_row

Connection = psycopg.Connection[tuple[Any, ...]]

ROWS_AT_ONCE = 200
"""The number of rows of a table to fetch at once."""

_CURSOR = queries("postgres", "cursor.sql")
_READ = queries("shared", "admin.sql") | queries("shared", "audit.sql")
_WRITE = queries(
    "postgres", "pieces.sql", "admin.sql", "timers.sql", "api_keys.sql", "audit.sql", "usage.sql"
)
_FACTS = " OR ".join(
    f"substring(l.payload from 1 for {len(each)}) = '{each}'::bytea"
    for each in (DECISION, TOOL_CALL)
)


class PostgresAdmin:
    """The administration of the PostgreSQL store at ``url``, whether replicas use it or not.

    Raises ``ValueError`` for another URL.
    """

    def __init__(self, url: str) -> None:
        self._address = Address.of(url)
        schema = f"{self._address.schema}."
        words = {"{waiting}": "waiting > 0", "{c}": 'COLLATE "C"', "{?}": "%s", "{schema}": schema}
        words |= {"{facts}": _FACTS}
        self._read_sql = dict(_READ)
        for word, meaning in words.items():
            for name, sql in self._read_sql.items():
                self._read_sql[name] = sql.replace(word, meaning)
        self._write_sql = sql_for(self._address, _WRITE)
        self._owners = {
            "{find}": "strpos",
            "{chr}": "chr",
            "{version}": ", version = version + 1",
            "{slot}": "slot, ",
            "{schema}": schema,
            "{value}": "%(name)s",
        }

    @property
    def name(self) -> str:
        """The address, without user and password."""
        return self._address.name

    def schema(self) -> SchemaStatus:
        """Return the version of the schema. Changes nothing."""
        versions = SCHEMA.inspect(self._address)
        return SchemaStatus(versions.found, versions.missing)

    def migrate(self) -> Sequence[Migration]:
        """Create the schema, or bring it up to date; return the migrations done."""
        return SCHEMA.migrate(self._address)

    def unassigned(self, owners: OwnerAssignment) -> Owned:
        """Return how much belongs to owners without an issuer."""
        with self._snapshot() as connection:
            return unassigned(self._execute(connection), owners)

    def assign(self, owners: OwnerAssignment) -> Owned:
        """Assign that to an issuer; return how much it was.

        Refused while replicas are alive: they hold the scopes of their tasks in memory.
        """
        with self._connected() as connection:
            self._refuse_when_used(
                connection
            )  # before it waits for a lock, and writers wait for it
            try:
                connection.execute(self._write_sql["limit_lock_wait"])
                connection.execute(self._write_sql["lock_owners"])
            except psycopg.errors.LockNotAvailable:
                raise StoreUnavailable(
                    f"{self.name} is being written to; stop what does, and do it again"
                ) from None
            self._refuse_when_used(connection)
            for name in ("expire_replicas", "free_tasks", "free_pushes"):
                connection.execute(self._write_sql[name])
            assigned = assign(self._execute(connection), owners)
            connection.commit()
            return assigned

    def _refuse_when_used(self, connection: Connection) -> None:
        found = connection.execute(self._write_sql["replicas"]).fetchall()
        alive = [id for id, _, is_alive, _ in found if is_alive]
        if alive:
            raise StoreUnavailable(
                f"{self.name} is in use by {', '.join(alive)}; stop its replicas first (one that "
                "was killed is counted until its lease is over)"
            )

    def _execute(self, connection: Connection) -> Execute:
        def run(sql: str, values: dict[str, Any]) -> Sequence[Any]:
            cursor = connection.execute(sql, values)
            return cursor.fetchall() if cursor.description is not None else ()

        return Execute(self._owners, run)

    def survey(self) -> Survey:
        """Return the store's status."""
        with self._snapshot() as connection:

            def rows(name: str) -> Iterable[Sequence[Any]]:
                return connection.execute(self._read_sql[name])

            found = connection.execute(self._write_sql["replicas"]).fetchall()
            return survey_of(
                rows,
                now=_one(connection, self._write_sql["now"]),
                size=_one(connection, self._write_sql["size"], (self._address.schema,)),
                replicas=[
                    Replica(id=id, seen_at=seen_at, alive=alive, holds=holds)
                    for id, seen_at, alive, holds in found
                ],
            )

    def agents(self) -> Sequence[str]:
        """Return the keys of the agents that have anything in the store."""
        with self._snapshot() as connection:
            return [agent for (agent,) in connection.execute(self._read_sql["agents"])]

    def prunable(self, agent: str, before: int) -> Prunable:
        """Return how much of an agent is older than a time (ms) and may be removed."""
        with self._snapshot() as connection:
            values = (agent, before)
            [(tasks, events)] = connection.execute(self._read_sql["old_tasks"], values)
            return Prunable(tasks, events, _one(connection, self._read_sql["old_receipts"], values))

    def now(self) -> int:
        """Return the time by the database's clock, in ms."""
        with self._snapshot() as connection:
            now: int = _one(connection, self._write_sql["now"])
            return now

    def suspended(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Return the suspended webhooks."""
        with self._snapshot() as connection:
            return [each for page in self._suspended(connection, which) for each in page]

    def waiting(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Return the active webhooks that wait for their receivers."""
        with self._snapshot() as connection:
            pages = self._suspended(connection, which, "waiting")
            return [each for page in pages for each in page]

    def resume(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Resume suspended webhooks, a page at a time; return which."""
        resumed: list[SuspendedWebhook] = []
        with self._connected() as connection:
            for page in self._suspended(connection, which):
                rows = ([each.key for each in page], [each.id for each in page])
                connection.execute(self._write_sql["resume"], rows)
                connection.commit()
                resumed += page
        return resumed

    def _suspended(
        self, connection: Connection, which: WebhookFilter, query: str = "suspended"
    ) -> Iterator[list[SuspendedWebhook]]:
        def find(values: Sequence[Any]) -> Sequence[Sequence[Any]]:
            return connection.execute(self._read_sql[query], values).fetchall()

        return suspended_of(find, which)

    def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; return whether it was not complete before."""
        value = checked_event(key, value)
        with self._connected() as connection:
            connection.execute(self._write_sql["lock_events"], (agent, [key]))
            values = {"agent": agent, "name": key, "value": value}
            values["at"] = _one(connection, self._write_sql["now"])
            cursor = connection.execute(self._write_sql["complete_event_outside"], values)
            [(found,)] = cursor.fetchall()
            connection.commit()
        if found is not None and bytes(found) != value:
            raise EventCompleted(agent, key)
        return found is None

    def secret(self, name: str) -> bytes:
        """Return the secret of a name; the first call makes it."""
        with self._connected() as connection:
            connection.execute(self._write_sql["add_secret"], (name, os.urandom(SECRET_BYTES)))
            connection.commit()
            return bytes(_one(connection, self._write_sql["secret"], (name,)))

    def add_api_key(self, record: ApiKeyRecord) -> None:
        """Store an API key."""
        checked(record)
        with self._connected() as connection:
            now = _one(connection, self._write_sql["now"])
            found = api_keys.add(connection.execute, self._write_sql, record, now)
            connection.commit()
        api_keys.check_added(found, record)

    def api_keys(self, owner: str = "") -> Sequence[ApiKeyRecord]:
        """Return all API keys, or those of an owner, the oldest first."""
        with self._connected() as connection:
            cursor = connection.execute(self._write_sql["api_keys"], {"owner": owner})
            return [record_of(row) for row in cursor.fetchall()]

    def end_api_key(
        self, id: str, *, expires_at: int | None = None, revoked_at: int | None = None
    ) -> ApiKeyRecord | None:
        """Have an API key end earlier, and return it."""
        with self._connected() as connection:
            sql = self._write_sql
            found = api_keys.end(connection.execute, sql, id, expires_at, revoked_at)
            connection.commit()
            return found

    def usage(self, query: UsageQuery) -> Sequence[UsageRow]:
        """Return what was used, the latest days first."""
        with self._connected() as connection:
            cursor = connection.execute(self._write_sql["usage"], query_values(query))
            return [usage_row(row) for row in cursor.fetchall()]

    def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append entries to the audit."""
        with self._connected() as connection:
            now = _one(connection, self._write_sql["now"])
            lines = audit.append(connection.execute, self._write_sql, entries, now)
            connection.commit()
            return lines

    def prune_audit(self, prune: AuditPrune) -> int:
        """Remove old lines of the audit, and append a checkpoint; return how many went."""
        with self._connected() as connection:
            now = _one(connection, self._write_sql["now"])
            count = audit.prune(connection.execute, self._write_sql, prune, now)
            connection.commit()
            return count

    @contextmanager
    def audit(self) -> Iterator[AuditReading]:
        """Read who did what as of the moment when this begins."""
        with self._snapshot() as connection:

            def rows(name: str, values: Sequence[Any]) -> Iterator[Sequence[Any]]:
                with connection.cursor(name, binary=True) as cursor:
                    cursor.itersize = ROWS_AT_ONCE
                    cursor.execute(self._read_sql[name], values)
                    yield from cursor

            yield AuditReading(rows)

    @contextmanager
    def reading(self) -> Iterator[PostgresExportSource]:
        """Read the store as of the moment when this begins."""
        with self._snapshot() as connection:
            yield PostgresExportSource(connection, self._read_sql)

    @contextmanager
    def writing(self) -> Iterator[PostgresImportTarget]:
        """Write to the store, after bringing its schema up to date."""
        self.migrate()
        with self._connected() as connection:
            try:
                yield PostgresImportTarget(connection, self._write_sql)
            except psycopg.errors.UniqueViolation:
                raise StoreUnavailable(
                    f"{self.name}: a replica added the same at the same moment; do it again, and "
                    "what is there by now is passed over"
                ) from None

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            with psycopg.connect(self._address.conninfo, prepare_threshold=None) as connection:
                yield connection
                connection.rollback()  # only commits are to last
        except psycopg.Error as error:
            raise explain(error, self._address) from None

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """Read as of one moment, and write nothing."""
        with self._connected() as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield connection


class PostgresExportSource:
    """A PostgreSQL store to export."""

    def __init__(self, connection: Connection, sql: dict[str, str]) -> None:
        self._connection = connection
        self._sql = sql

    def lines(self) -> Iterator[ExportLine]:
        """Yield all lines of the export."""
        return lines_of(self._rows)

    def _rows(self, name: str) -> Iterator[Sequence[Any]]:
        execute, query = self._connection.execute, self._sql[name]
        sql = filled(_CURSOR, {"name": name, "query": query, "count": ROWS_AT_ONCE})
        execute(sql["declare"])
        while rows := execute(sql["fetch"], binary=True).fetchall():
            yield from rows
        execute(sql["close"])


class PostgresImportTarget:
    """A PostgreSQL store to import into."""

    def __init__(self, connection: Connection, sql: dict[str, str]) -> None:
        self._connection = connection
        self._sql = sql
        self._keys: dict[str, int] = {}
        self._agents: dict[str, str] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()
        # Built as a replica's writer does: time, writer's number, counter.
        number = _one(connection, sql["writer_number"]) % WRITERS
        first = (_one(connection, sql["now"]) - KEY_EPOCH) * KEYS_A_MS
        self._new_keys = (
            (ms * WRITERS + number) * KEYS_A_MS + n
            for ms, n in (divmod(i, KEYS_A_MS) for i in count(first))
        )

    def contexts_there(self, contexts: Sequence[ExportedContext]) -> set[tuple[str, str, str, str]]:
        """Return the keys of those that the store has."""
        return self._named("contexts_there", [context.name for context in contexts])

    def receipts_there(self, receipts: Sequence[ExportedReceipt]) -> set[tuple[str, str, str, str]]:
        """Return the keys of those that the store has."""
        return self._named("receipts_there", [receipt.name for receipt in receipts])

    def events_there(self, events: Sequence[ExportedEvent]) -> set[tuple[str, str]]:
        """Return the keys of those that the store has."""
        columns = [list(column) for column in zip(*[e.name for e in events], strict=True)]
        return {(agent, name) for agent, name in self._find("events_there", columns)}

    def tasks_there(self, tasks: Sequence[ExportedTask]) -> set[str]:
        """Return the ids of those that the store has."""
        ids = [task.task_id for task in tasks]
        return {task_id for (task_id,) in self._find("tasks_there", (ids,))}

    def add_contexts(
        self,
        contexts: Sequence[ExportedContext],
        messages: Sequence[Sequence[ContextMessage]],
        values: Sequence[Sequence[ContextValue]],
    ) -> None:
        """Add contexts, with the messages and the values of each."""
        keys = sorted([key for (key,) in self._find("context_keys", (len(contexts),))])
        rows, message_rows, value_rows = context_rows(keys, contexts, messages, values)
        self._copy("add_contexts", rows)
        self._copy("add_messages", message_rows)
        self._copy("add_values", value_rows)

    def add_receipts(self, receipts: Sequence[ExportedReceipt]) -> None:
        """Add receipts."""
        self._copy("add_receipts", [receipt_row(receipt) for receipt in receipts])

    def add_events(self, events: Sequence[ExportedEvent]) -> None:
        """Add events."""
        self._copy("add_events", [event_row(event) for event in events])

    def add_tasks(self, tasks: Sequence[ExportedTask]) -> None:
        """Add tasks, in this order."""
        for task in tasks:
            self._keys[task.task_id] = next(self._new_keys)
            self._agents[task.task_id] = task.agent
            self._counts[task.agent, task.tenant, task.owner, task.state.value] += 1
        rows = [(*head_row(self._keys[task.task_id], task), 1) for task in tasks]
        self._copy("add_tasks", rows)
        if waits := wait_rows(self._keys, tasks):
            # Nobody completes one of these events between this look and the commit.
            for agent in sorted({row[1] for row in waits}):
                names = sorted({row[2] for row in waits if row[1] == agent})
                self._connection.execute(self._sql["lock_events"], (agent, names))
            self._copy("add_waits", waits)
            keys = sorted({row[0] for row in waits})
            self._connection.execute(self._sql["wake_for_events"], (keys,))

    def add_records(self, records: Sequence[tuple[str, ExportedRecord]]) -> None:
        """Add records to logs."""
        self._copy("add_records", [record_row(self._keys[id], record) for id, record in records])

    def add_pushes(self, pushes: Sequence[tuple[str, str, ExportedPush]]) -> None:
        """Add webhooks."""
        rows = [
            (*push_row(self._keys[id], self._agents[id], push_id, push), "")
            for id, push_id, push in pushes
        ]
        self._copy("add_pushes", rows)

    def add_stored(self, forms: Sequence[tuple[str, int, StoredForm]]) -> None:
        """Store the stored form of tasks."""
        keyed = [(self._keys[task_id], seq, form) for task_id, seq, form in forms]
        messages = [row for key, _, form in keyed for row in form.message_rows(key)]
        artifacts = [row for key, seq, form in keyed for row in form.artifact_rows(key, seq)]
        self._copy("add_task_messages", messages)
        self._copy("add_task_artifacts", artifacts)
        columns = [
            [key for key, _, _ in keyed],
            [len(form.messages) for _, _, form in keyed],
            [form.has_status_message for _, _, form in keyed],
            [seq for _, seq, _ in keyed],
        ]
        self._connection.execute(self._sql["set_stored"], columns)

    def commit(self) -> None:
        """Make the additions durable."""
        # Last, and in order: replicas wait for the locks of these rows.
        for name, n in sorted(self._counts.items()):
            self._connection.execute(self._sql["count_tasks"], (*name, n))
        self._counts.clear()
        self._keys.clear()
        self._agents.clear()
        self._connection.commit()

    def _named(self, name: str, names: Sequence[tuple[str, ...]]) -> set[tuple[str, str, str, str]]:
        columns = [list(column) for column in zip(*names, strict=True)]
        found = self._find(name, columns)
        return {(agent, tenant, owner, last) for agent, tenant, owner, last in found}

    def _find(self, name: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._connection.execute(self._sql[name], values).fetchall()

    def _copy(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        with self._connection.cursor() as cursor, cursor.copy(self._sql[name]) as copy:
            for row in rows:
                copy.write_row(row)


def _one(connection: Connection, sql: str, values: Sequence[Any] = ()) -> Any:
    [(value,)] = connection.execute(sql, values).fetchall()
    return value
