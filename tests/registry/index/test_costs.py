"""What a search costs does not grow with the entries that it does not show."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from parley.registry.index import selections
from parley.registry.index.selections import Order
from parley.registry.index.session import Row, Values
from parley.registry.index.sqlite import SqliteRegistryIndex, SqliteSession
from tests.registry.index.making import EVERYBODY, draft

pytestmark = pytest.mark.anyio


class Explaining(SqliteSession):
    """Notes how each statement that was put together is run."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.connection = connection
        self.steps: list[str] = []

    def ask(self, statement: str, values: Values) -> list[Row]:
        plan = self.connection.execute(f"EXPLAIN QUERY PLAN {statement}", dict(values))
        self.steps += [str(row[3]) for row in plan]
        return super().ask(statement, values)


@pytest.mark.parametrize("field", selections.ORDERS)
async def test_every_order_of_a_list_has_an_index(tmp_path: Path, field: str) -> None:
    path = tmp_path / "registry.db"
    index = SqliteRegistryIndex(path, synchronous="NORMAL")
    await index.open()
    await index.put([draft("a"), draft("b")])
    await index.close()
    connection = sqlite3.connect(path)
    session = Explaining(connection)
    for is_descending in (False, True):
        order = [Order(field=field, descending=is_descending)]
        assert len(selections.browse(session, EVERYBODY, order, 10, 0)) == 2
    connection.close()
    assert not [step for step in session.steps if "TEMP B-TREE" in step]
