"""Every SQL statement stands in a ``.sql`` file, under its name."""

from __future__ import annotations

import ast
import re

from tests.house.sizes import ROOT

HOUSE = ROOT / "src" / "parley"
ROOMS = [HOUSE / "database", HOUSE / "store", HOUSE / "registry"]
STATEMENT = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|DROP|ALTER|PRAGMA|LISTEN|NOTIFY|SET|DECLARE|FETCH"
    r"|COPY|LOCK|DEALLOCATE|EXPLAIN|VACUUM|BEGIN|COMMIT|ROLLBACK|SAVEPOINT)\b"
)
# For transaction control of drivers, a name would add nothing to the SQL word.
TRANSACTION_CONTROL = {"BEGIN", "BEGIN IMMEDIATE", "BEGIN IMMEDIATE;", "COMMIT", "ROLLBACK"}
HTTP_METHOD = {"DELETE"}
HTTP_METHODS = {"DELETE"}


def test_no_python_file_of_these_rooms_holds_a_statement() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {text.strip()[:60]}"
        for room in ROOMS
        for path in sorted(room.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        for text in [node.value if isinstance(node.value, str) else node.value.decode("latin-1")]
        if STATEMENT.match(text) and text.strip() not in TRANSACTION_CONTROL | HTTP_METHODS
    ]
    assert found == [], "write it into a .sql file, under `-- name:`"


def test_each_statement_has_one_name_within_its_file() -> None:
    for path in sorted(HOUSE.rglob("*.sql")):
        names = re.findall(r"(?m)^-- (?:name|piece): (\w+)$", path.read_text("utf-8"))
        assert len(names) == len(set(names)), path
