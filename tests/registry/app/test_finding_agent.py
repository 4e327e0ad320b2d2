"""The registry as an A2A agent, over all bindings and versions."""

from __future__ import annotations

import pytest

import parley
from parley.model.parts import Message
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.waiting import until
from tests.registry.app.serving import SCHEME, Served, agents, served

pytestmark = pytest.mark.anyio

NEED = "find me an agent that converts currencies"


@pytest.fixture(scope="module")
async def here():
    from parley.registry.app.registry import Registry

    async with agents() as there:
        registry = Registry("memory:", sources=[there])
        async with serving(registry.app, grpc=GrpcOptions(port=0)) as url:
            made = Served(registry, url)

            async def is_filled():
                return (await made.get("/agents")).json["total"] == 2

            await until(is_filled)
            yield made


def _data(answer: Message) -> list[dict]:
    return [part.data for part in answer.parts if part.has_data]


async def test_the_agent_that_was_found_can_be_called(here):
    async with parley.connect(f"{here.url}/a2a") as remote:
        entry = _data(await remote.send(NEED))[0]
    async with parley.connect(entry["url"]) as found:
        answer = await found.send("Convert 100 USD to EUR")
        assert answer.text == "42 EUR"


async def test_the_agents_entries_are_those_of_a_search_by_rest(here):
    async with parley.connect(f"{here.url}/a2a") as remote:
        entries = _data(await remote.send(NEED))
    assert entries == (await here.search(NEED, pageSize=5))["results"]


async def test_a_data_part_has_the_filter_of_a_search(here):
    async with parley.connect(f"{here.url}/a2a") as remote:
        asked = {"query": {"text": "agent", "filter": {"tags": ["sailing"]}}, "pageSize": 3}
        found = _data(await remote.send(data=asked))
        assert [each["displayName"] for each in found] == ["Boat agent"]
        none = await remote.send("zebra crossing", data={"query": {"filter": {"tags": ["none"]}}})
        assert none.text == "No agent matches."


async def test_without_credentials_nobody_asks_a_registry_that_requires_them():
    from parley.client.errors import ClientError

    async with served(auth=SCHEME) as here, parley.connect(f"{here.url}/a2a") as remote:
        with pytest.raises((ClientError, parley.A2AError)):
            await remote.send("agent")
