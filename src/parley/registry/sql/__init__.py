"""The SQL of the index: named statements and numbered migrations, a folder for each database."""

from __future__ import annotations

from parley.database.sql import SqlFiles

SQL_FILES = SqlFiles(__name__)
