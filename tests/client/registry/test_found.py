"""What is found in catalogs and registries, and how it is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import parley
from parley.client.errors import AddressNotAllowed, CardNotFound, OriginNotTrusted
from parley.registry.catalog.reading import read_entry
from parley.registry.catalog.searching import SearchRequest, SearchResponse, SearchResult
from parley.registry.client.found import FoundAgent
from parley.registry.client.places import AgentNotFound, NotARegistry, RegistryRefused
from parley.registry.index.words import is_misspelling
from parley.security.egress import Egress
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


CATALOG = {
    "specVersion": "1.0",
    "entries": [
        entry(
            "fx",
            "Currency converter",
            description="Converts amounts of money with the rates of today.",
            tags=["finance"],
            metadata={"region": "eu"},
        ),
        entry("rain", "Weather", representativeQueries=["will it rain in Paris", "is it cold"]),
        entry("travel", "Trip planner", description="Books flights and hotels.", tags=["Travel"]),
        entry("tool", "Currency tool", type="application/mcp-server-card+json"),
    ],
}


def names(found: list[parley.FoundAgent]) -> list[str]:
    return [each.identifier.rpartition(":")[2] for each in found]


@pytest.mark.parametrize(
    ("need", "expected"),
    [
        ("currency conversion", ["fx"]),
        ("find me an agent that converts currencies", ["fx"]),
        ("will it rain", ["rain"]),
        ("book a flight", ["travel"]),
        ("TRAVEL", ["travel"]),
        ("curency convertion", ["fx"]),
        ("quantum physics", []),
        ("exchange dollars", ["fx"]),
    ],
)
async def test_words_find_what_is_needed(need: str, expected: list[str]) -> None:
    assert names(await parley.find(need, registry=CATALOG)) == expected


async def test_filters_hold_for_every_field_path() -> None:
    async def found(need: str, **filters: Any) -> list[str]:
        return names(await parley.find(need, registry=CATALOG, filter=filters))

    assert await found("currency", **{"metadata.region": "EU"}) == ["fx"]
    assert await found("currency", **{"metadata.region": ["us", "asia"]}) == []
    assert await found("currency", publisher="example.com", tags=["finance", "x"]) == ["fx"]
    assert await found("currency", type="application/mcp-server-card+json") == ["tool"]
    assert await found("currency", **{"no.such.path": "x"}) == []


@pytest.mark.parametrize("form", ["name", "path", "file url", "environment", "json"])
async def test_a_file_is_named_in_any_way(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "agents.json"
    file.write_text(json.dumps(CATALOG))
    registry: Any = {
        "name": "agents.json",
        "path": file,
        "file url": file.as_uri(),
        "environment": None,
        "json": json.dumps(CATALOG),
    }[form]
    monkeypatch.setenv("PARLEY_REGISTRY", str(file))
    [found] = await parley.find("currency", registry=registry)
    assert found.name == "Currency converter"
    assert found.egress is None  # the user's own words


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (["https://a.example.com"], "a.example.com"),
        ({"agents": [{"name": "Money changer", "url": "http://127.0.0.1:9"}]}, "Money changer"),
        (
            {"cards": [{"name": "Money", "skills": [{"name": "money", "tags": ["changer"]}]}]},
            "Money",
        ),
    ],
)
async def test_simple_lists_of_agents_are_catalogs_too(document: Any, expected: str) -> None:
    need = "changer example" if isinstance(document, list) else "changer"
    [found] = await parley.find(need, registry=json.dumps(document))
    assert found.name == expected
    assert found.identifier.startswith("urn:air:")


async def test_catalogs_within_a_catalog_are_searched_too() -> None:
    inner: dict[str, Any] = CATALOG
    for level in range(6):
        nested = entry(f"c{level}", "Catalog", type="application/ai-catalog+json", data=inner)
        del nested["url"]
        inner = {"specVersion": "1.0", "entries": [nested, entry(f"e{level}", f"Level {level}")]}
    found = names(await parley.find("level", registry=inner))
    assert sorted(found) == ["e1", "e2", "e3", "e4", "e5"]


async def test_a_file_that_names_a_registry_alone_leads_there() -> None:
    listed = {
        "entries": [
            entry("r", "R", type="application/ai-registry+json", url="http://127.0.0.1:9/api")
        ]
    }
    async with parley.RemoteRegistry(listed, retries=0) as registry:
        with pytest.raises(parley.ClientError, match="cannot connect"):
            await registry.find("x")
        assert registry.name == "http://127.0.0.1:9/api/"


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


async def test_a_catalog_shows_entries_counts_facets_and_takes_no_expressions() -> None:
    async with parley.RemoteRegistry(CATALOG) as registry:
        assert (await registry.entry("URN:AIR:example.com:agent:fx")).display_name
        with pytest.raises(AgentNotFound):
            await registry.entry("urn:air:example.com:agent:none")
        facet = (await registry.explore(facets=["type", "tags"]))["type"]
        assert (facet.buckets[0].value, facet.buckets[0].count) == (A2A, 3)
        first = await registry.browse(page_size=3)
        rest = await registry.browse(page_size=3, page_token=first.page_token)
        assert (len(first.entries), len(rest.entries), rest.page_token) == (3, 1, "")
        finance = await registry.browse(filter="tags = 'finance'", order_by="displayName DESC")
        assert ([each.display_name for each in finance.entries], finance.total) == (
            ["Currency converter"],
            1,
        )
        with pytest.raises(RegistryRefused, match="the filter is invalid at the end"):
            await registry.browse(filter="type =")
        with pytest.raises(RegistryRefused, match="cannot be filtered by 'description'"):
            await registry.explore(facets=["type"], filter={"description": "x"})
        with pytest.raises(NotARegistry, match="accepts no requests"):
            await registry.send("POST", "publish", {})


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


def test_find_sync_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    [found] = parley.find_sync("currency", registry=CATALOG, limit=1)
    assert found.name == "Currency converter"
    monkeypatch.delenv("PARLEY_REGISTRY", raising=False)
    with pytest.raises(ValueError, match="PARLEY_REGISTRY"):
        parley.find_sync("currency")


async def test_find_sync_works_where_a_loop_runs() -> None:
    assert parley.find_sync("currency", registry=CATALOG)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("curency", "currency", True),
        ("currency", "currencyy", True),
        ("currancy", "currency", True),
        ("trasnlate", "translate", True),
        ("currency", "currency", False),
        ("curancy", "currency", False),
        ("urrency", "currency", False),
        ("form", "farm", False),
        ("gpt41", "gpt42", False),
        ("tarnslate", "translate", False),
    ],
)
def test_words_are_misspelled_by_one_letter(one: str, other: str, expected: bool) -> None:
    assert is_misspelling(one, other) is expected
    assert is_misspelling(other, one) is expected


# -- what is found is called like any agent, but a registry is not the user ------------------------


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
