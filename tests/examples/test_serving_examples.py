"""Examples of serving: several agents on one server, and an agent inside an application."""

from __future__ import annotations

import aiohttp
import pytest

import parley
from tests.examples.conftest import EXAMPLES
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio


async def test_several_agents_answer_each_under_its_path(example) -> None:
    agents = example("several_agents").AGENTS
    async with under_uvicorn(parley.asgi(agents, store="memory:")) as url:
        for path, agent in agents.items():
            async with parley.connect(f"{url}{path}") as remote:
                assert remote.card.name == agent.name
                assert remote.interface.url == f"{url}{path}"
        async with parley.connect(f"{url}/time") as remote:
            assert "Tokyo" in (await remote.send("What time is it in Tokyo?")).text


async def test_tenants_answer_at_one_address(example) -> None:
    tenants = example("tenants").TENANTS
    async with under_uvicorn(parley.asgi(tenants=tenants, store="memory:")) as url:
        for tenant, agent in tenants.items():
            async with parley.connect(f"{url}/{tenant}") as remote:
                assert remote.card.name == agent.name
                assert (remote.interface.url, remote.interface.tenant) == (url, tenant)
        async with parley.connect(f"{url}/globex") as remote:
            assert "Tokyo" in (await remote.send("What time is it in Tokyo?")).text


async def test_an_agent_answers_inside_an_application(example) -> None:
    async with (
        under_uvicorn(example("mounted").app) as url,
        parley.connect(f"{url}/agents/time") as remote,
    ):
        assert remote.interface.url.startswith(f"{url}/agents/time")
        assert "Tokyo" in (await remote.send("What time is it in Tokyo?")).text


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_says_how_to_run_it(path) -> None:
    docstring = path.read_text("utf-8").split('"""')[1]
    assert f"examples/{path.name}" in docstring or f"{path.stem}:app" in docstring
    ways = ("parley send", f"pytest examples/{path.name}", "curl")  # not every one is an agent
    assert any(way in docstring for way in ways)


async def test_a_catalog_lists_what_is_served(example) -> None:
    module = example("catalog")
    app = parley.asgi(module.AGENTS, publisher=module.PUBLISHER, store="memory:")
    async with (
        under_uvicorn(app) as url,
        aiohttp.ClientSession() as http,
        http.get(f"{url}/.well-known/ard.json") as answer,
    ):
        catalog = await answer.json(content_type="application/ai-catalog+json")
    assert [entry["identifier"] for entry in catalog["entries"]] == [
        f"urn:air:agent.localhost:agent:{name}" for name in ("time", "boats", "flights")
    ]
    assert all(len(entry["representativeQueries"]) >= 2 for entry in catalog["entries"])
