"""The SQL of the task stores. Statements that fit every database are in ``shared``."""

from __future__ import annotations

from parley.database.sql import Migration, SqlFiles, filled

__all__ = ["FILES", "Migration", "filled", "migrations", "pieces", "queries"]

FILES = SqlFiles(__name__)

queries = FILES.queries
pieces = FILES.pieces
migrations = FILES.migrations
