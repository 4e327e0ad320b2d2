"""A connection that reads a PostgreSQL database, on a thread of the reader pool."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from parley.database.errors import StoreUnavailable
from parley.database.postgres.connection import (
    INDEXED,
    Address,
    BoundedConnection,
    explain,
    is_transient,
)
from parley.model.backoff import Backoff

T = TypeVar("T")

BACKOFF = Backoff(0.02, 0.5)
"""The delay before a read is tried again, in seconds."""


class PostgresReadConnection:
    """Reads, and reads again when the connection was lost, for up to ``timeout`` seconds.

    The time counts from when a caller began to wait: callers whose time is over are refused without
    a further try, however many they are.
    """

    def __init__(self, address: Address, timeout: float, session: str = INDEXED) -> None:
        self.name = address.name
        self._address = address
        self._timeout = timeout
        self._connection = BoundedConnection(address, timeout=timeout, session=session)
        self._failure: StoreUnavailable | None = None

    def read(self, function: Callable[[BoundedConnection], T], asked_at: float) -> T:
        """Call ``function`` with the connection; return its result. Raises ``StoreUnavailable``."""
        deadline = asked_at + self._timeout
        failures = 0
        if self._failure is not None and time.monotonic() > deadline:
            raise StoreUnavailable(*self._failure.args)
        while True:
            self._connection.timeout = max(1.0, deadline - time.monotonic())
            try:
                result = function(self._connection)
            except psycopg.Error as error:
                if not is_transient(error):
                    raise explain(error, self._address) from None
                failures += 1
                pause = BACKOFF.delay(failures)
                if time.monotonic() + pause > deadline:
                    self._failure = explain(error, self._address)
                    raise self._failure from None
            else:
                self._failure = None
                return result
            time.sleep(pause)

    def close(self) -> None:
        """Disconnect."""
        self._connection.disconnect()
