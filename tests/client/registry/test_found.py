"""What is found is called like any agent, but a registry is not the user."""

from __future__ import annotations

from typing import Any

import pytest

import parley
from parley.client.errors import AddressNotAllowed, CardNotFound, OriginNotTrusted
from parley.registry.catalog.reading import read_entry
from parley.registry.client.found import FoundAgent
from parley.security.egress import Egress
from tests.kit.scripted_server import Exchange, card, scripted

pytestmark = pytest.mark.anyio

A2A = "application/a2a-agent-card+json"


def found(**entry: Any) -> FoundAgent:
    base = {"identifier": "urn:air:example.com:agent:fx", "displayName": "Fx", "type": A2A}
    return FoundAgent(entry=read_entry({**base, **entry}), is_near=entry.pop("is_near", False))


async def test_an_agent_that_is_found_is_called() -> None:
    agent = parley.Agent("Echo", description="Repeats what it hears.")

    @agent.skill
    async def echo(turn: parley.Turn) -> str:
        """Repeats."""
        return turn.text

    app = parley.asgi(agent)
    from tests.kit.servers import under_uvicorn

    async with under_uvicorn(app) as url:
        entry = {
            "identifier": "urn:air:agent.localhost:agent:echo",
            "displayName": "Echo",
            "type": A2A,
            "url": f"{url}/.well-known/agent-card.json",
        }
        catalog = {"specVersion": "1.0", "entries": [entry]}
        [one] = await parley.find("echo", registry=catalog)
        async with parley.connect(one) as remote:
            assert (await remote.send("hello")).text == "hello"


async def test_an_address_of_a_registry_is_dialled_in_public_only() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.json(card(server.url))

    async with scripted(answer) as server:
        inside = found(url=f"{server.url}/.well-known/agent-card.json")
        with pytest.raises(AddressNotAllowed, match="allow_private"):
            await parley.connect(inside)
        assert server.exchanges == []
        near = FoundAgent(entry=inside.entry, places=("127.0.0.0/8",))
        async with parley.connect(near) as remote:
            assert remote.card.name
        async with parley.connect(inside, egress=Egress(private=True)) as remote:
            assert remote.card.name


@pytest.mark.parametrize(
    "url",
    [
        "/etc/passwd",
        "agents.json",
        "./card.json",
        "file:///etc/passwd",
        '{"name": "x"}',
        "ftp://example.com/card",
        "https://me:pw@example.com/card.json",
    ],
)
async def test_a_registry_names_addresses_of_the_web_alone(url: str) -> None:
    with pytest.raises(CardNotFound) as caught:
        await parley.connect(found(url=url))
    assert "pw" not in str(caught.value)


async def test_what_is_no_a2a_agent_is_not_called() -> None:
    with pytest.raises(CardNotFound, match="not an A2A agent"):
        await parley.connect(found(url="https://example.com/x", type="application/ai-skill"))


async def test_a_card_in_an_entry_gets_credentials_for_its_first_interface_only() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.result({"kind": "message", "messageId": "m", "role": "agent", "parts": []})

    async with scripted(answer) as server, scripted(answer) as evil:
        given = card(server.url)
        second = {**given["supportedInterfaces"][0], "url": f"{evil.url}/rpc"}
        given["supportedInterfaces"].append(second)
        inside = FoundAgent(entry=found(data=given).entry, is_near=True)
        async with parley.connect(inside, bearer="token") as remote:
            assert remote.interface.url.startswith(server.url)
            assert [each.url for each in remote.skipped_interfaces] == [f"{evil.url}/rpc"]
        # A caller's own card may name any origin; one of a registry may not.
        grpc = {**second, "url": "agent.example.com:443", "protocolBinding": "GRPC"}
        given["supportedInterfaces"] = [grpc]
        with pytest.raises(OriginNotTrusted):
            await parley.connect(FoundAgent(entry=found(data=given).entry), bearer="token")


async def test_what_a_registry_knows_of_an_agent_is_bounded() -> None:
    marks = ["instructions", 7, "x" * 100, *map(str, range(100))]
    one = found(url="https://example.com/c.json", registry={"marks": marks, "via": "v" * 2000})
    assert one.marks[:2] == ("instructions", "x" * 60)
    assert len(one.marks) <= 16
    assert len(one.via) == 512
    assert found(url="https://example.com/c.json", registry=[1]).marks == ()


def test_an_agent_that_is_printed_sends_nothing_to_the_terminal() -> None:
    one = found(url="https://example.com/c.json", displayName="Fx\x1b[2J\nok")
    assert str(one) == "Fx?[2J?ok (urn:air:example.com:agent:fx, 0)"
