"""A second application of the engines: it stores notes in either database."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import psycopg

from parley.database.database import Database
from parley.database.errors import StoreError
from parley.database.postgres.connection import Address, BoundedConnection
from parley.database.postgres.database import PostgresDatabase, PostgresSchema
from parley.database.sql import SqlFiles
from parley.database.sqlite.database import SqliteDatabase
from parley.database.sqlite.file import SqliteSchema

NOTES = SqlFiles("tests.database.notes")
LATER = SqlFiles("tests.database.later")
APPLICATION_ID = 0x4E4F5445  # "NOTE"
USUAL_SCHEMA = "parley_notes"


class Unwanted(StoreError):
    """A note that the application rejects."""


class Notes(ABC):
    """Opens the application's database, and reads its content."""

    is_shared: bool
    """True if several processes can open the database."""
    place: str
    """The location of the database, for another process."""

    @abstractmethod
    def database(self, files: SqlFiles = NOTES, **options: Any) -> Database[Any]:
        """Return a database of this application, not open."""

    @abstractmethod
    def say(self, connection: Any, author: str, body: str = "") -> int:
        """Write a note within a job; return its number."""

    @abstractmethod
    def count_commits(self, database: Any) -> None:
        """Start to count the transactions of an open database."""

    @abstractmethod
    def commits(self, database: Any) -> int:
        """Return the number of transactions."""

    @abstractmethod
    def fill_the_disk(self, connection: Any) -> None:
        """Fail as on a full disk."""

    @abstractmethod
    def look(self, sql: str) -> list[tuple[Any, ...]]:
        """Read or change the database from outside; ``{notes}``, ``{versions}`` are the tables."""

    def authors(self) -> list[str]:
        """Return the authors of the notes, in order."""
        return [author for (author,) in self.look("SELECT author FROM {notes} ORDER BY id")]

    def paint(self, connection: Any, *address: Address) -> None:
        """Run the Python part of the migration that adds colours."""
        prefix = f"{address[0].schema}." if address else ""
        connection.execute(f"UPDATE {prefix}notes SET colour = 'of ' || author")


class SqliteNotes(Notes):
    """Notes in a file."""

    is_shared = False

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notes.db"
        self.place = str(folder)
        self._done: list[str] = []

    def database(self, files: SqlFiles = NOTES, **options: Any) -> SqliteDatabase:
        application_id = options.pop("application_id", APPLICATION_ID)
        schema = SqliteSchema(application_id, files, {2: self.paint})
        return SqliteDatabase(self.path, schema, **options)

    def say(self, connection: sqlite3.Connection, author: str, body: str = "") -> int:
        sql = "INSERT INTO notes (author, body) VALUES (?, ?) RETURNING id"
        return int(connection.execute(sql, (author, body)).fetchone()[0])

    def count_commits(self, database: Any) -> None:
        database._writing.batch_writer.connection.set_trace_callback(self._done.append)

    def commits(self, database: Any) -> int:
        return self._done.count("COMMIT")

    def fill_the_disk(self, connection: sqlite3.Connection) -> None:
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        [before] = connection.execute("PRAGMA max_page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        try:
            self.say(connection, "greedy", "x" * 1_000_000)
        finally:
            connection.execute(f"PRAGMA max_page_count = {before}")

    def look(self, sql: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            sql = sql.replace("{notes}", "notes").replace("{versions}", "schema_versions")
            return connection.execute(sql).fetchall()
        finally:
            connection.close()


class PostgresNotes(Notes):
    """Notes in a schema."""

    is_shared = True

    def __init__(self, url: str, schema: str = USUAL_SCHEMA) -> None:
        self.address = Address.of(url, schema=schema)
        self.place = url

    def database(self, files: SqlFiles = NOTES, **options: Any) -> PostgresDatabase:
        schema = PostgresSchema(files, {2: self.paint})
        return PostgresDatabase(self.address, schema, **options)

    def say(self, connection: BoundedConnection, author: str, body: str = "") -> int:
        sql = f"INSERT INTO {self.address.schema}.notes (author, body) VALUES (%s, %s) RETURNING id"
        return int(connection.rows(sql, (author, body))[0][0])

    def count_commits(self, database: Any) -> None:
        """Do nothing: each row records its transaction."""

    def commits(self, database: Any) -> int:
        return len(self.look("SELECT DISTINCT xmin::text FROM {notes}"))

    def fill_the_disk(self, connection: BoundedConnection) -> None:
        raising = "RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'"
        connection.execute(f"DO $$ BEGIN {raising}; END $$")

    def look(self, sql: str) -> list[tuple[Any, ...]]:
        schema = self.address.schema
        sql = sql.replace("{notes}", f"{schema}.notes")
        sql = sql.replace("{versions}", f"{schema}.schema_versions")
        with psycopg.connect(self.address.conninfo, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []
