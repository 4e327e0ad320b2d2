"""The SQL of the task stores; ``shared`` has statements for every database."""

from __future__ import annotations

from parley.database.sql import SqlFiles

FILES = SqlFiles(__name__)

queries = FILES.queries
pieces = FILES.pieces
migrations = FILES.migrations
