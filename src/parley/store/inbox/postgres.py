"""An inbox in PostgreSQL, for the replicas of a receiver."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from parley.database.postgres.connection import Address, explain
from parley.database.sql import filled
from parley.store.inbox.inbox import InboxAnswer, InboxFailed, ThreadedInbox
from parley.store.sql import queries

_TABLES = ("lock_schema", "create_schema", "create_handled", "create_expiry", "create_lanes")


class PostgresInbox(ThreadedInbox):
    """Remembers notifications in two tables. A broken connection is made anew at the next use."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._address = Address.of(url)
        self._sql = filled(queries("postgres", "inbox.sql"), {"schema": self._address.schema})
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def __repr__(self) -> str:
        return f"PostgresInbox({self._address.name!r})"

    def _connect(self) -> None:
        if self._connection is not None:
            return
        try:
            # A pooler may give each transaction another session: nothing is prepared.
            connection = psycopg.connect(self._address.conninfo, prepare_threshold=None)
            try:
                with connection.transaction():
                    for name in _TABLES:
                        connection.execute(self._sql[name])
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise InboxFailed(str(explain(error, self._address))) from None
        self._connection = connection

    @contextmanager
    def _transaction(self) -> Generator[psycopg.Connection[tuple[Any, ...]]]:
        self._connect()
        connection = self._connection
        assert connection is not None
        try:
            with connection.transaction():
                yield connection
        except psycopg.Error as error:
            self._disconnect()
            raise InboxFailed(str(explain(error, self._address))) from None

    def _admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer:
        admission = InboxAnswer.BUSY
        with self._transaction() as connection:
            # The lane first: who waits for its row sees what the holder before has finished.
            if connection.execute(self._sql["take_lane"], (lane, holder, lease)).rowcount:
                admission = InboxAnswer.NEW
            if id and connection.execute(self._sql["is_handled"], (id,)).fetchone():
                admission = InboxAnswer.HANDLED
                raise psycopg.Rollback
        return admission

    def _finish(self, id: str, lane: str, holder: str, keep: float, prunes: bool) -> None:
        with self._transaction() as connection:
            if id:
                connection.execute(self._sql["remember"], (id, keep))
            if lane:
                connection.execute(self._sql["release"], (lane, holder))
            if prunes:
                connection.execute(self._sql["prune_handled"])
                connection.execute(self._sql["prune_lanes"])

    def _release(self, lane: str, holder: str) -> None:
        with self._transaction() as connection:
            connection.execute(self._sql["release"], (lane, holder))

    def _renew(self, lanes: list[str], holder: str, lease: float) -> None:
        with self._transaction() as connection:
            connection.execute(self._sql["renew"], (lease, lanes, holder))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
