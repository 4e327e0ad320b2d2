"""The registry reads the agents of the catalog, as its docstring says."""

from __future__ import annotations

import pytest

import parley
from parley.registry.app.registry import Registry
from parley.server.run import serving
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio


async def test_the_agents_of_the_catalog_are_found_and_called(example) -> None:
    catalog = example("catalog")
    assert example("registry").CATALOGS == ["http://127.0.0.1:9999"]
    app = parley.asgi(catalog.AGENTS, publisher=catalog.PUBLISHER, store="memory:")
    async with under_uvicorn(app) as there:
        registry = Registry("memory:", sources=[there], publisher="registry.localhost")
        async with serving(registry.app) as url:
            found = await parley.find("what time is it in Tokyo", registry=url)
            assert found[0].name == catalog.AGENTS["/time"].name
            async with parley.connect(found[0]) as agent:
                assert "Tokyo" in (await agent.send("What time is it in Tokyo?")).text
