"""The SQL of the stores: named statements and numbered migrations, a folder for each database.

A statement stands under a line ``-- name: <its name>``; comments under that describe it. What
several statements have in common stands under ``-- piece: <its name>``, and they name it in braces.
The engine fills in other words in braces. A migration is a file ``<number>_<what>.sql``; migrations
run once, in order, and never change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple


class Migration(NamedTuple):
    """One step from an older schema to a newer one."""

    version: int
    name: str
    sql: str


def queries(database: str, *names: str) -> dict[str, str]:
    """Return the named statements of some files of ``database``, with their pieces put in.

    The default is ``queries.sql``. Statements that fit every database are in ``shared``.
    """
    statements, parts = _read(database, names or ("queries.sql",))
    for name, sql in statements.items():
        statements[name] = re.sub(r"\{(\w+)\}", lambda word: parts.get(word[1], word[0]), sql)
    return statements


def pieces(database: str, *names: str) -> dict[str, str]:
    """Return the pieces of some files, for statements that an engine assembles."""
    return _read(database, names)[1]


def filled(statements: Mapping[str, str], words: Mapping[str, object]) -> dict[str, str]:
    """Return statements with words in braces replaced."""
    result = dict(statements)
    for name, sql in result.items():
        for word, meaning in words.items():
            sql = sql.replace(f"{{{word}}}", str(meaning))
        result[name] = sql
    return result


def migrations(database: str) -> list[Migration]:
    """Return the migrations for ``database``, in order."""
    found = []
    for file in files(__name__).joinpath(database).iterdir():
        match = re.fullmatch(r"(\d+)_(\w+)\.sql", file.name)
        if match:
            sql = file.read_text(encoding="utf-8")
            found.append(Migration(int(match[1]), match[2], sql))
    return sorted(found)


def _read(database: str, names: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    found: dict[str, dict[str, str]] = {"name": {}, "piece": {}}
    for name in names:
        text = files(__name__).joinpath(database, name).read_text(encoding="utf-8")
        blocks = re.split(r"^-- (name|piece): (\w+)\n", text, flags=re.MULTILINE)[1:]
        for kind, key, block in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
            sql = re.sub(r"^--.*\n?", "", block, flags=re.MULTILINE)
            found[kind][key] = sql.strip().rstrip(";")
    return found["name"], found["piece"]
