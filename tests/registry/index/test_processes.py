"""Several processes share an index in PostgreSQL."""

from __future__ import annotations

import pytest

from parley.registry.index.postgres import PostgresRegistryIndex
from parley.registry.records import EntrySelection, EntryStanding
from tests.registry.index.making import CATALOG, OPERATOR, draft, found, identifier

pytestmark = [pytest.mark.anyio, pytest.mark.service]


async def test_each_process_finds_what_another_has_stored_and_nothing_it_has_forgotten(
    postgres_url: str,
) -> None:
    now = 1_000
    one, other = [PostgresRegistryIndex(postgres_url, clock=lambda: now) for _ in range(2)]
    for index in (one, other):
        await index.open()
    await one.put([draft("fx", "currency"), draft("sky", "weather")])
    assert await found(other, "currency") == ["fx"]
    await other.put([draft("fx", "violin")])
    assert await found(one, "currency") == []
    assert await found(one, "violin") == ["fx"]
    await one.withdraw(CATALOG, [identifier("sky")], "gone")
    gone = EntrySelection(viewer=OPERATOR, standings=(EntryStanding.WITHDRAWN,))
    assert await found(other, "violin") == []
    assert await other.count(gone) == 1
    assert await one.forget(now + 1, 10) == 1
    assert await other.browse(gone, (), 1, 0) == []
    assert await other.count(gone) == 0
    for index in (one, other):
        await index.close()
