"""The SQL of the stores: named queries and numbered migrations, a folder for each database.

A query stands under a line ``-- name: <its name>``; comments under that say what it does. A
migration is a file ``<number>_<what>.sql``; they run in order, once, and are never changed.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple


class Migration(NamedTuple):
    """One step from an older schema to a newer one."""

    version: int
    name: str
    sql: str


def queries(database: str, file: str = "queries.sql") -> dict[str, str]:
    """Return the named queries for ``database``; what is the same for all is in ``shared``."""
    text = files(__name__).joinpath(database, file).read_text(encoding="utf-8")
    pieces = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return {
        name: re.sub(r"^--.*\n", "", sql, flags=re.MULTILINE).strip().rstrip(";")
        for name, sql in zip(pieces[::2], pieces[1::2], strict=True)
    }


def migrations(database: str) -> list[Migration]:
    """Return the migrations for ``database``, in order."""
    found = []
    for file in files(__name__).joinpath(database).iterdir():
        match = re.fullmatch(r"(\d+)_(\w+)\.sql", file.name)
        if match:
            sql = file.read_text(encoding="utf-8")
            found.append(Migration(int(match[1]), match[2], sql))
    return sorted(found)
