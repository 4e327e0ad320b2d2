"""Agents found in catalogs and registries, and calls to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import parley
from parley.client.errors import OriginNotTrusted
from parley.registry.catalog.reading import read_entry
from parley.registry.catalog.searching import SearchRequest, SearchResponse, SearchResult
from parley.registry.client.found import FoundAgent
from parley.registry.client.places import NotARegistry
from tests.kit.scripted_server import Exchange, card, scripted

pytestmark = pytest.mark.anyio


A2A = "application/a2a-agent-card+json"


def entry(name: str, title: str, **more: Any) -> dict[str, Any]:
    return {
        "identifier": f"urn:air:example.com:agent:{name}",
        "displayName": title,
        "type": A2A,
        "url": f"https://example.com/{name}.json",
        **more,
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"{}", "list of entries"),
        (b"[" * 100_000, "not JSON"),
        (None, "cannot be read"),
    ],
)
async def test_a_file_that_is_no_catalog_is_named(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "agents.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NotARegistry, match=said):
        await parley.find("x", registry=file)


# -- a found agent is called like any agent, but a registry has fewer rights than the user ---------


def found(**entry: Any) -> FoundAgent:
    base = {"identifier": "urn:air:example.com:agent:fx", "displayName": "Fx", "type": A2A}
    return FoundAgent(entry=read_entry({**base, **entry}), is_near=entry.pop("is_near", False))


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
        # A card from the caller may name any origin; a card from a registry may not.
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


async def test_an_object_of_ones_own_is_asked_in_the_place_of_a_registry() -> None:
    class Directory:
        def __init__(self) -> None:
            self.asked: list[SearchRequest] = []

        async def search(self, request: SearchRequest) -> SearchResponse:
            self.asked.append(request)
            result = SearchResult(entry=entry("own", "Own"), score=7, source="our directory")
            return SearchResponse(results=(result,))

    directory = Directory()
    [found] = await parley.find("anything", registry=directory)
    assert (found.name, found.score, found.source) == ("Own", 7, "our directory")
    assert directory.asked[0].query.text == "anything"
