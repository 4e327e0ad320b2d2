"""The SQL of the stores: named queries and numbered migrations, a folder for each database.

A query stands under a line ``-- name: <its name>``; comments under that say what it does. What
several queries have in common stands under ``-- piece: <its name>``, and they name it in braces. A
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
    found = re.split(r"^-- (name|piece): (\w+)\n", text, flags=re.MULTILINE)[1:]
    texts = [re.sub(r"^--.*\n", "", sql, flags=re.MULTILINE).strip() for sql in found[2::3]]
    parts = [*zip(found[::3], found[1::3], [sql.rstrip(";") for sql in texts], strict=True)]
    pieces = {f"{{{name}}}": sql for kind, name, sql in parts if kind == "piece"}
    named = {name: sql for kind, name, sql in parts if kind == "name"}
    for name, sql in named.items():
        named[name] = re.sub(r"\{\w+\}", lambda match: pieces.get(match[0], match[0]), sql)
    return named


def migrations(database: str) -> list[Migration]:
    """Return the migrations for ``database``, in order."""
    found = []
    for file in files(__name__).joinpath(database).iterdir():
        match = re.fullmatch(r"(\d+)_(\w+)\.sql", file.name)
        if match:
            sql = file.read_text(encoding="utf-8")
            found.append(Migration(int(match[1]), match[2], sql))
    return sorted(found)
