"""The registry as an A2A agent, over its bindings and versions."""

from __future__ import annotations

import pytest

import parley
from parley.model.parts import Message
from parley.model.tasks import TaskState
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.servers import WAYS, grpc_of
from tests.kit.waiting import until
from tests.registry.app.serving import A2A, SCHEME, Served, agents, draft, key, owner, served

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


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_a_need_is_answered_with_catalog_entries(here, binding, version):
    url = f"{here.url}/a2a"
    async with parley.connect(
        url, binding=binding, version=version, trust_origins=await grpc_of(url)
    ) as remote:
        answer = await remote.send(NEED)
    assert isinstance(answer, Message)
    first, *_ = _data(answer)
    assert first["identifier"] == "urn:air:agent.localhost:agent:currency"
    assert first["type"] == A2A
    assert first["url"].endswith("/currency/.well-known/agent-card.json")
    assert 0 < first["score"] <= 100
    assert first["source"]


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


@pytest.mark.parametrize(
    "data",
    [
        {"limit": 5},
        {"query": {"words": "x"}},
        {"query": {"text": 5}},
        {"query": {"filter": {"a b": "c"}}},
        {"pageSize": 0},
        {"federation": "maybe"},
        {"pageToken": "made up"},
        [],
    ],
)
async def test_a_search_that_is_wrong_is_rejected_with_what_is_wrong(here, data):
    async with parley.connect(f"{here.url}/a2a") as remote:
        answer = await remote.send("an agent", data=data)
    assert answer.status.state is TaskState.REJECTED
    assert answer.status.message.text


async def test_callers_are_shown_what_is_for_them():
    async with served(auth=SCHEME, public_search=True) as here:
        hidden = draft("ada-agent", audience=(f"caller:{owner('ada')}",), texts={"A": "agent"})
        await here.registry.index.put([hidden])
        for headers, count in (({}, 0), (key("bob"), 0), (key("ada"), 1)):
            async with parley.connect(f"{here.url}/a2a", headers=headers) as remote:
                assert len(_data(await remote.send("agent"))) == count


async def test_without_credentials_nobody_asks_a_registry_that_requires_them():
    from parley.client.errors import ClientError

    async with served(auth=SCHEME) as here, parley.connect(f"{here.url}/a2a") as remote:
        with pytest.raises((ClientError, parley.A2AError)):
            await remote.send("agent")
