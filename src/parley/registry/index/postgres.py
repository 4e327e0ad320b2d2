"""The index of a registry in a schema of PostgreSQL, which several processes share."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from parley.database.postgres.connection import Address, BoundedConnection
from parley.database.postgres.database import PostgresDatabase, PostgresSchema
from parley.database.sql import filled
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.writing import OWN, SHARED, WORDS, Session, Values, as_json
from parley.registry.sql import SQL_FILES

logger = logging.getLogger(__name__)

SCHEMA = "parley_registry"
"""The schema of the tables, unless the URL names another."""

CLOCK_SECONDS = 60.0
"""How often the clock is synchronized with the server's clock."""

_SESSION = SQL_FILES.queries("postgres", "session.sql")
_SCHEMA = PostgresSchema(SQL_FILES)


class PostgresRegistryIndex(RegistryIndex):
    """Stores a registry in the database of a libpq URL; its ``?schema=`` names the schema.

    Reads and writes wait ``timeout`` seconds for an unavailable database. ``open`` updates the
    schema if ``migrates``, else it rejects an older schema. ``clock`` returns milliseconds since
    1970, and is corrected by the database's clock. Raises ``ValueError`` for any other URL.
    """

    def __init__(
        self,
        url: str,
        *,
        migrates: bool = True,
        timeout: float = 15.0,
        clock: Callable[[], int] | None = None,
    ) -> None:
        address = Address.of(url, schema=SCHEMA)
        super().__init__(
            PostgresDatabase(
                address,
                _SCHEMA,
                timeout=timeout,
                migrates=migrates,
                session=_SESSION["configure_session"],
            )
        )
        self._sql = _statements(address.schema)
        self._clock = clock
        self._offset = 0.0
        self._set_at = 0.0

    def now(self) -> int:
        """Return the time in ms, by the clock of the database."""
        if self._clock is not None:
            return self._clock()
        return round((time.time() + self._offset) * 1000)

    async def open(self) -> None:
        """Open it, with an up-to-date schema. Raises ``StoreUnavailable``."""
        await super().open()
        self._offset = await self._database.read(_offset)

    def _session(self, connection: BoundedConnection) -> Session:
        if time.monotonic() > self._set_at + CLOCK_SECONDS:
            self._set_at = time.monotonic()
            self._offset = _offset(connection)

        def execute(name: str, values: Values) -> Any:
            return connection.execute(self._sql[name], values)

        return Session(execute, lambda name, rows: execute(name, {"rows": as_json(rows)}), list)


@cache
def _statements(schema: str) -> dict[str, str]:
    words = SQL_FILES.pieces("postgres", WORDS)
    shared = SQL_FILES.queries("shared", *SHARED)
    named = {name: re.sub(r":(\w+)", r"%(\1)s", sql) for name, sql in shared.items()}
    return filled(SQL_FILES.queries("postgres", OWN) | named, {**words, "schema": schema})


def _offset(connection: BoundedConnection) -> float:
    """Return by how many seconds the database's clock is ahead."""
    asked_at = time.time()
    [(now,)] = connection.rows(_SESSION["now"])
    return float(now) - (asked_at + time.time()) / 2
