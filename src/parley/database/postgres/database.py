"""A database of an application in a schema of PostgreSQL, which replicas share."""

from __future__ import annotations

import psycopg

from parley.database.database import Database, Opened
from parley.database.errors import StoreUnavailable
from parley.database.postgres.connection import INDEXED, Address, BoundedConnection, explain
from parley.database.postgres.migrations import PostgresSchema
from parley.database.postgres.reader import PostgresReadConnection
from parley.database.postgres.writer import PostgresGroupWriter


class PostgresDatabase(Database[BoundedConnection]):
    """What an application keeps in the schema of an address.

    Reads and writes wait ``timeout`` seconds for a database that is away. ``open`` brings the
    schema up to date if ``migrates``, else it rejects an older one, and says ``migrate_by``.
    """

    def __init__(
        self,
        address: Address,
        schema: PostgresSchema,
        *,
        timeout: float = 15.0,
        migrates: bool = True,
        migrate_by: str = "",
        readers: int = 4,
        session: str = INDEXED,
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
        super().__init__(address.name)
        self._address = address
        self._schema = schema
        self._timeout = timeout
        self._migrates = migrates
        self._migrate_by = migrate_by
        self._readers = readers
        self._session = session

    @property
    def unavailable_reason(self) -> str:
        """Always empty: a database that is away shows in what is read and written."""
        return ""

    def _open(self) -> Opened[BoundedConnection]:
        if self._migrates:
            done = self._schema.migrate(self._address)
            self.migrated = [f"{step.version} {step.name}" for step in done]
        else:
            self._refuse_older()
        address, timeout, session = self._address, self._timeout, self._session
        writer = PostgresGroupWriter(address, timeout=timeout, session=session)
        try:
            writer.connection.connect()
        except psycopg.Error as error:
            raise explain(error, address) from None
        return writer, [
            PostgresReadConnection(address, timeout, session) for _ in range(self._readers)
        ]

    def _refuse_older(self) -> None:
        versions = self._schema.inspect(self._address)
        if versions.missing:
            raise StoreUnavailable(
                f"{self.name} has schema version {versions.found}, and this version of Parley "
                f"needs {versions.known}: bring it up to date"
                + (f" with `{self._migrate_by}`" if self._migrate_by else "")
            )
