"""What a search costs does not grow with the entries that it does not show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from parley.registry import records
from parley.registry.index.entry_search import EntrySearch, SearchTables
from parley.registry.index.sqlite import SqliteRegistryIndex
from parley.registry.records import Order
from tests.registry.index.making import EVERYBODY, draft

pytestmark = pytest.mark.anyio


class Explaining(SearchTables):
    """Notes how each statement that was put together is run."""

    steps: list[str]

    def ask(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        plan = self.connection.execute(f"EXPLAIN QUERY PLAN {statement}", dict(values))
        self.steps += [str(row[3]) for row in plan]
        return super().ask(statement, values)


@pytest.mark.parametrize("field", records.ORDERS)
async def test_every_order_of_a_list_has_an_index(
    monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(Explaining, "steps", steps, raising=False)
    search = EntrySearch()
    monkeypatch.setattr(search, "_tables", Explaining.made())
    index = SqliteRegistryIndex()
    monkeypatch.setattr(index, "_search", search)
    await index.open()
    await index.put([draft("a"), draft("b")])
    for is_descending in (False, True):
        order = [Order(field=field, descending=is_descending)]
        assert len(await index.browse(EVERYBODY, order, 10, 0)) == 2
    await index.close()
    assert steps
    assert not [step for step in steps if "TEMP B-TREE" in step]
