"""Indexes for searches."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.urls import open_index


@pytest.fixture(params=["memory:", pytest.param("postgres", marks=pytest.mark.service)])
async def index(request: pytest.FixtureRequest) -> AsyncIterator[RegistryIndex]:
    url = request.param
    index = open_index(request.getfixturevalue("postgres_url") if url == "postgres" else url)
    await index.open()
    yield index
    await index.close()
