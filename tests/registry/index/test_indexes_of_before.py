"""Registries that earlier versions wrote are opened, and find what they hold."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from parley.registry.index.postgres import PostgresRegistryIndex
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.sqlite import SqliteRegistryIndex
from parley.registry.records import EntrySelection, EntryStanding, Order, Viewer
from tests.kit.services.postgres import PostgresServer
from tests.registry.index.making import OPERATOR, found, listed, short, where

pytestmark = pytest.mark.anyio

KEPT = Path(__file__).parents[2] / "data" / "registry"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def before(request: pytest.FixtureRequest, tmp_path: Path) -> RegistryIndex:
    """An index with the third version of the schema: four entries, one withdrawn, one for some."""
    if request.param == "sqlite":
        file = tmp_path / "registry.db"
        file.write_bytes(gzip.decompress((KEPT / "sqlite-3.db.gz").read_bytes()))
        return SqliteRegistryIndex(file)
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.new_database()
    name = url.partition("?")[0].rpartition("/")[2]
    server.execute(gzip.decompress((KEPT / "postgres-3.sql.gz").read_bytes()).decode(), name)
    return PostgresRegistryIndex(f"{url}{'&' if '?' in url else '?'}schema=kept")


async def test_what_an_earlier_version_kept_is_found(before: RegistryIndex) -> None:
    await before.open()
    try:
        assert await found(before, "currencies converted") == ["fx"]
        assert await found(before, "violin") == []
        assert await found(before, "violin", viewer=Viewer(tokens=("me",))) == ["mine"]
        assert await listed(before, where("tags", "finance")) == {"fx"}
        assert await listed(before, where("observed.health", "healthy")) == {"fx"}
        gone = EntrySelection(viewer=OPERATOR, standings=(EntryStanding.WITHDRAWN,))
        order = [Order(field="updatedAt", descending=True)]
        assert [short(e.identifier) for e in await before.browse(gone, order, 9, 0)] == ["old"]
        assert [source.url for source in await before.sources()] == ["https://example.com/"]
        [entry] = await before.entries_of("urn:air:example.com:agents:fx")
        await before.put([entry])
        assert await found(before, "currency") == ["fx"]
    finally:
        await before.close()
