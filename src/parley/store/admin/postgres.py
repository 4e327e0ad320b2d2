"""The administration of a PostgreSQL store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import psycopg

from parley.database.postgres.connection import Address, explain
from parley.database.sql import Migration, filled
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
from parley.store.postgres.schema import SCHEMA, audit_sql, sql_for
from parley.store.postgres.store import PostgresTaskStore
from parley.store.postgres.tables import PostgresRows
from parley.store.protocols.claims import Replica
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.tables import EventCompleted, checked_event
from parley.store.protocols.webhooks import SuspendedWebhook, WebhookFilter
from parley.store.sql import queries
from parley.store.webhooks import suspended_of

T = TypeVar("T")

Connection = psycopg.Connection[tuple[Any, ...]]

ROWS_PER_FETCH = 200
"""The number of rows of a table to fetch at once."""

_CURSOR = queries("postgres", "cursor.sql")
_READ = queries("shared", "admin.sql")
_WRITE = queries("postgres", "pieces.sql", "admin.sql", "timers.sql", "rows.sql")


class PostgresAdmin(StoreAdmin):
    """The administration of the PostgreSQL store at ``url``, whether replicas use it or not.

    Raises ``ValueError`` for another URL.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._cursors = 0
        self._address = Address.of(url)
        words = {"schema": f"{self._address.schema}."}
        read = {"waiting": "waiting > 0", "c": 'COLLATE "C"', "?": "%s"}
        self._sql = sql_for(self._address, _WRITE) | audit_sql(self._address)
        self._read_sql = self._sql | filled(_READ, read | words)
        dialect = {"find": "strpos", "chr": "chr", "version": ", version = version + 1"}
        self._owner_sql = owner_statements("%({})s", slot="slot, ", **dialect, **words)

    @property
    def name(self) -> str:
        """The address, without user and password."""
        return self._address.name

    def schema(self) -> SchemaStatus:
        """Return the version of the schema. Changes nothing."""
        versions = SCHEMA.inspect(self._address)
        return SchemaStatus(versions.found, versions.missing)

    def migrate(self) -> Sequence[Migration]:
        """Create or migrate the schema; return the executed migrations."""
        return SCHEMA.migrate(self._address)

    def assign(self, owners: OwnerAssignment) -> Owned:
        """Assign owners to an issuer; return the amount.

        Rejected while replicas are alive, since they have the scopes of their tasks in memory.
        """
        with self._connected() as connection:
            self._refuse_when_used(
                connection
            )  # before it waits for a lock, because writers would wait for it
            try:
                connection.execute(self._sql["limit_lock_wait"])
                connection.execute(self._sql["lock_owners"])
            except psycopg.errors.LockNotAvailable:
                raise StoreUnavailable(
                    f"{self.name} is being written to; stop what does, and do it again"
                ) from None
            self._refuse_when_used(connection)
            for name in ("expire_replicas", "free_tasks", "free_pushes"):
                connection.execute(self._sql[name])
            assigned = assign(self._execute(connection), owners)
            connection.commit()
            return assigned

    def _refuse_when_used(self, connection: Connection) -> None:
        found = connection.execute(self._sql["replicas"]).fetchall()
        alive = [id for id, _, is_alive, _ in found if is_alive]
        if alive:
            raise StoreUnavailable(
                f"{self.name} is in use by {', '.join(alive)}; stop its replicas first (one that "
                "was killed is counted until its lease is over)"
            )

    def _execute(self, connection: Connection) -> Execute:
        def run(name: str, values: dict[str, Any]) -> Sequence[Any]:
            cursor = connection.execute(self._owner_sql[name], values)
            return cursor.fetchall() if cursor.description is not None else ()

        return run

    @contextmanager
    def _owners(self) -> Iterator[Execute]:
        with self._snapshot() as connection:
            yield self._execute(connection)

    def survey(self) -> Survey:
        """Return the store's status."""
        with self._snapshot() as connection:
            found = connection.execute(self._sql["replicas"]).fetchall()
            return survey_of(
                lambda name: connection.execute(self._read_sql[name]),
                now=_one(connection, self._sql["now"]),
                size=_one(connection, self._sql["size"], (self._address.schema,)),
                replicas=[
                    Replica(id=id, seen_at=seen_at, alive=alive, holds=holds)
                    for id, seen_at, alive, holds in found
                ],
            )

    def now(self) -> int:
        """Return the time by the database's clock, in ms."""
        with self._snapshot() as connection:
            now: int = _one(connection, self._sql["now"])
            return now

    def resume(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Resume suspended webhooks, in pages; return these."""
        resumed: list[SuspendedWebhook] = []
        with self._connected() as connection:
            for page in suspended_of(
                partial(_find, connection, self._read_sql["suspended"]), which
            ):
                rows = ([each.key for each in page], [each.id for each in page])
                connection.execute(self._sql["resume"], rows)
                connection.commit()
                resumed += page
        return resumed

    def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; return ``False`` if it was complete before."""
        value = checked_event(key, value)
        with self._connected() as connection:
            connection.execute(self._sql["lock_events"], (agent, [key]))
            values = {"agent": agent, "name": key, "value": value}
            values["at"] = _one(connection, self._sql["now"])
            cursor = connection.execute(self._sql["complete_event_outside"], values)
            [(found,)] = cursor.fetchall()
            connection.commit()
        if found is not None and bytes(found) != value:
            raise EventCompleted(agent, key)
        return found is None

    def _change_rows(self, work: Callable[..., T], *arguments: Any) -> T:
        with self._connected() as connection:
            now = _one(connection, self._sql["now"])
            result = work(PostgresRows(connection.execute, self._sql, now), *arguments)
            connection.commit()
            return result

    def _store(self) -> PostgresTaskStore:
        return PostgresTaskStore(self._url)

    def _read_rows(self, work: Callable[[PostgresRows], T]) -> T:
        with self._snapshot() as connection:
            now = _one(connection, self._sql["now"])
            return work(PostgresRows(connection.execute, self._sql, now))

    def _rows(self, name: str, values: Values = ()) -> Sequence[Sequence[Any]]:
        with self._snapshot() as connection:
            return _find(connection, self._read_sql[name], values)

    @contextmanager
    def audit(self) -> Iterator[AuditReading]:
        """Open the audit for reading, at the present moment."""
        with self._snapshot() as connection:
            yield AuditReading(partial(self._streamed, connection))

    @contextmanager
    def reading(self) -> Iterator[ExportSource]:
        """Open the store for reading, at the present moment."""
        with self._snapshot() as connection:
            yield ExportSource(partial(self._streamed, connection))

    def _streamed(
        self, connection: Connection, name: str, values: Values = ()
    ) -> Iterator[Sequence[Any]]:
        """Yield the rows of a query, with only a few in memory at a time.

        The cursor is closed with the transaction.
        """
        query = self._read_sql[name]
        self._cursors += 1
        words = {"name": f"c{self._cursors}", "query": query, "count": ROWS_PER_FETCH}
        sql = filled(_CURSOR, words)
        connection.execute(sql["declare"], values or None)
        while found := connection.execute(sql["fetch"], binary=True).fetchall():
            yield from found

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
        """Open a read-only transaction at one moment."""
        with self._connected() as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield connection


def _find(connection: Connection, sql: str, values: Values) -> list[tuple[Any, ...]]:
    return connection.execute(sql, values).fetchall()


def _one(connection: Connection, sql: str, values: Sequence[Any] = ()) -> Any:
    [(value,)] = connection.execute(sql, values).fetchall()
    return value
