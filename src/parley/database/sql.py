"""The SQL of an application: named statements and numbered migrations, a folder for each database.

A statement follows a line ``-- name: <its name>``; comments under that describe it. A common part
of several statements follows ``-- piece: <its name>``, and is inserted where they name it in
braces. The engine replaces other words in braces. A migration is a file ``<number>_<what>.sql``;
migrations run once, in order, and never change.
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


class SqlFiles:
    """The ``.sql`` files in the folders of a package: ``sqlite``, ``postgres``, others."""

    def __init__(self, package: str) -> None:
        self._package = package

    def queries(self, folder: str, *names: str) -> dict[str, str]:
        """Return the named statements of some files in a folder, with their pieces inserted.

        The default is ``queries.sql``.
        """
        statements, parts = self._read(folder, names or ("queries.sql",))
        for name, sql in statements.items():
            statements[name] = re.sub(r"\{(\w+)\}", lambda word: parts.get(word[1], word[0]), sql)
        return statements

    def pieces(self, folder: str, *names: str) -> dict[str, str]:
        """Return the pieces of some files, for statements that an engine assembles."""
        return self._read(folder, names)[1]

    def migrations(self, folder: str) -> list[Migration]:
        """Return the migrations in a folder, in order. Raises ``ValueError`` without any."""
        found = []
        for file in files(self._package).joinpath(folder).iterdir():
            match = re.fullmatch(r"(\d+)_(\w+)\.sql", file.name)
            if match:
                sql = file.read_text(encoding="utf-8")
                found.append(Migration(int(match[1]), match[2], sql))
        if not found:
            raise ValueError(
                f"{self._package}/{folder} has no migration: the first is a file 0001_<what>.sql"
            )
        return sorted(found)

    def _read(self, folder: str, names: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
        found: dict[str, dict[str, str]] = {"name": {}, "piece": {}}
        for name in names:
            text = files(self._package).joinpath(folder, name).read_text(encoding="utf-8")
            blocks = re.split(r"^-- (name|piece): (\w+)\n", text, flags=re.MULTILINE)[1:]
            for kind, key, block in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
                sql = re.sub(r"^--.*\n?", "", block, flags=re.MULTILINE)
                found[kind][key] = sql.strip().rstrip(";")
        return found["name"], found["piece"]


def filled(statements: Mapping[str, str], words: Mapping[str, object]) -> dict[str, str]:
    """Return statements with words in braces replaced."""
    result = dict(statements)
    for name, sql in result.items():
        for word, meaning in words.items():
            sql = sql.replace(f"{{{word}}}", str(meaning))
        result[name] = sql
    return result
