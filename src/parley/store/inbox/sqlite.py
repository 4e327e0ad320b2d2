"""An inbox in a SQLite file, for the processes of one machine."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from parley.database.sqlite.private_file import UnsafeFile, open_private
from parley.store.inbox.inbox import InboxAnswer, InboxFailed
from parley.store.inbox.threaded_inbox import ThreadedInbox
from parley.store.sql import queries

_SQL = queries("sqlite", "inbox.sql")
_SETTINGS = ("wait_for_lock", "keep_journal", "configure")
_TABLES = ("create_handled", "create_expiry", "create_lanes")


class SqliteInbox(ThreadedInbox):
    """Remembers notifications in a file of its own, private to its owner."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = Path(path)
        self._connection: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"SqliteInbox({str(self._path)!r})"

    def _connect(self) -> None:
        if self._connection is not None:
            return
        try:
            os.close(open_private(self._path, creates=True))
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=5.0
            )
            for name in (*_SETTINGS, *_TABLES):
                connection.execute(_SQL[name]).close()
        except (OSError, UnsafeFile, sqlite3.Error) as error:
            raise InboxFailed(f"the inbox {self._path} cannot be opened: {error}") from error
        self._connection = connection

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        self._connect()
        connection = self._connection
        assert connection is not None
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise InboxFailed(f"the inbox {self._path} fails: {error}") from error

    def _admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer:
        now = time.time()
        with self._transaction() as connection:
            if id and connection.execute(_SQL["is_handled"], (id, now)).fetchone():
                return InboxAnswer.HANDLED
            taken = connection.execute(_SQL["take_lane"], (lane, holder, now + lease, now))
            return InboxAnswer.NEW if taken.rowcount else InboxAnswer.BUSY

    def _finish(self, id: str, lane: str, holder: str, keep: float, prunes: bool) -> None:
        now = time.time()
        with self._transaction() as connection:
            if id:
                connection.execute(_SQL["remember"], (id, now + keep))
            if lane:
                connection.execute(_SQL["release"], (lane, holder))
            if prunes:
                connection.execute(_SQL["prune_handled"], (now,))
                connection.execute(_SQL["prune_lanes"], (now,))

    def _release(self, lane: str, holder: str) -> None:
        with self._transaction() as connection:
            connection.execute(_SQL["release"], (lane, holder))

    def _renew(self, lanes: list[str], holder: str, lease: float) -> None:
        until = time.time() + lease
        with self._transaction() as connection:
            connection.executemany(_SQL["renew"], [(until, lane, holder) for lane in lanes])

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
