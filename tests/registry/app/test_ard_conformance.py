"""Agentic Resource Discovery: the official tool, and cases of ours, against a real process."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess

import pytest
from conformance.ard import CATALOG, SCENES, asked, registry_process
from conformance.kits import ARD, NotAtHand, files_of

from parley.registry.catalog.reading import catalog_problems
from parley.server.run import serving
from tests.kit.http import ask

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}
URN = re.compile(r"urn:air:[a-zA-Z0-9.-]+(:[a-zA-Z0-9._-]+)+")
REFERRALS = ("application/ai-registry", "application/ai-registry+json")


@pytest.fixture(scope="module")
async def agents():
    """A real server's catalog."""
    async with serving(SCENES["several agents"].app()) as url:
        yield url


@pytest.fixture(scope="module")
async def registry(agents):
    """A process that has read it."""
    process = registry_process("--crawl", agents, "--store", "memory:")
    url = await asyncio.to_thread(process.__enter__)
    yield url
    await asyncio.to_thread(process.__exit__, None, None, None)


@pytest.fixture(scope="module")
def kit():
    try:
        return files_of(ARD)
    except (NotAtHand, OSError, subprocess.SubprocessError) as error:
        pytest.skip(str(error))


async def test_the_official_tool_passes_the_registry(kit, registry):
    assert await asyncio.to_thread(asked, kit, "registry", registry) == ("passed", "")


async def test_the_official_tool_passes_the_catalog_of_the_registry(kit, registry):
    outcome = await asyncio.to_thread(asked, kit, "manifest", registry + CATALOG)
    assert outcome == ("passed", "")


async def test_the_official_tool_resolves_the_registry_as_a_publisher(kit, registry):
    outcome = await asyncio.to_thread(asked, kit, "publisher", registry)
    assert outcome == ("passed", "")


async def test_an_entry_is_answered_by_itself_by_its_exact_identifier(registry):
    identifier = "urn:air:agent.localhost:server:weather"
    for written in (identifier, identifier.replace(":", "%3A")):
        answer = await ask(registry, "GET", f"/agents/{written}")
        assert answer.status == 200
        assert answer.json["identifier"] == identifier
        assert not {"score", "source", "entry"} & set(answer.json)
        _check_entry(answer.json)
        assert answer.headers["etag"]
        assert "max-age" in answer.headers["cache-control"]
        assert answer.json["registry"]["details"]["publisher"] == "agent.localhost"
    for other in (identifier.upper(), identifier.replace("air:a", "air:A"), f"{identifier}x"):
        missing = await ask(registry, "GET", f"/agents/{other}")
        assert (missing.status, missing.json["errorCode"]) == (404, "NOT_FOUND"), other
    for wrong in ("urn%253Aair", "urn:ai:agent.localhost:server:weather", "%zz"):
        refused = await ask(registry, "GET", f"/agents/{wrong}")
        assert (refused.status, refused.json["errorCode"]) == (400, "INVALID_ARGUMENT"), wrong


async def test_a_filter_by_a_term_of_another_namespace_goes_by_its_iri(registry):
    async def found(filter, context=None):
        query = {"text": "weather forecast", "filter": filter}
        if context is not None:
            query["@context"] = context
        return len((await _post(registry, "/search", {"query": query}))["results"])

    acme = {"x": "https://acme.localhost/vocab#"}
    assert await found({"x:tier": "gold"}, acme) == 1
    assert await found({"x:tier": "iron"}, acme) == 0
    assert await found({"x:site.city": "Oslo"}, [acme, "https://acme.localhost/context"]) == 1
    assert await found({"tier": ["gold"]}, {"tier": {"@id": "x:tier"}, **acme}) == 1
    assert await found({"https://acme.localhost/vocab#tier": "gold"}) == 1
    assert await found({"acme:tier": "gold"}) == 0  # no prefix of the query
    core = "https://agenticresourcediscovery.org/ns#"
    assert await found({"ard:type": "application/mcp-server-card+json"}, {"ard": core}) == 1
    facets = await _post(
        registry,
        "/explore",
        {"query": {"@context": acme}, "resultType": {"facets": [{"field": "x:tier"}]}},
    )
    assert facets["facets"]["x:tier"]["buckets"] == [{"value": "gold", "count": 1}]


async def test_the_official_tool_fails_what_is_no_registry(kit, agents):
    assert (await asyncio.to_thread(asked, kit, "registry", agents)).kind == "failed"


async def _post(url, path, body):

    answer = await ask(url, "POST", path, json.dumps(body).encode(), JSON)
    assert answer.status == 200, answer.body
    return answer.json


def _check_entry(entry):
    """The rules of an entry (ARD §4.2)."""
    assert URN.fullmatch(entry["identifier"])
    assert entry["displayName"]
    assert "/" in entry["type"]
    assert ("url" in entry) != ("data" in entry)


async def test_a_search_answers_with_entries_scores_and_sources(registry):
    body = {
        "query": {
            "text": "weather forecast tools",
            "filter": {"type": ["application/mcp-server-card+json"]},
        },
        "federation": "none",
        "pageSize": 2,
    }
    answer = await _post(registry, "/search", body)
    assert set(answer) <= {"results", "referrals", "pageToken"}
    [found] = answer["results"]
    _check_entry(found)
    assert found["displayName"] == "Weather forecast tools"
    assert type(found["score"]) is int
    assert 0 <= found["score"] <= 100
    assert found["source"].startswith("http")


async def test_a_scalar_is_a_filter_of_one_value_and_paths_are_and_values_or(registry):
    async def count(filter):
        body = {"query": {"text": "agent time weather tools", "filter": filter}}
        return len((await _post(registry, "/search", body))["results"])

    everything = await count({})
    assert everything == 3
    a2a, mcp = "application/a2a-agent-card+json", "application/mcp-server-card+json"
    assert await count({"type": mcp}) == 1
    assert await count({"type": [a2a, mcp]}) == everything
    assert await count({"type": a2a, "publisher": "agent.localhost"}) == 2
    assert await count({"type": a2a, "publisher": "other.example"}) == 0


@pytest.mark.parametrize("mode", ["auto", "referrals", "none"])
async def test_every_mode_of_federation_is_understood(registry, mode):
    answer = await _post(registry, "/search", {"query": {"text": "time"}, "federation": mode})
    assert answer["results"]
    for each in answer.get("referrals", []):
        assert each["type"] in REFERRALS
        assert set(each) >= {"identifier", "displayName", "url"}
    assert mode == "referrals" or "referrals" not in answer


async def test_scores_fall_and_pages_go_on(registry):
    scores, token, names = [], None, []
    for _ in range(5):
        body = {"query": {"text": "agent time weather tools"}, "pageSize": 1}
        answer = await _post(registry, "/search", body | ({"pageToken": token} if token else {}))
        scores += [each["score"] for each in answer["results"]]
        names += [each["identifier"] for each in answer["results"]]
        token = answer.get("pageToken")
        if token is None:
            break
    assert len(set(names)) == len(names) == 3
    assert scores == sorted(scores, reverse=True)


async def test_an_exploration_covers_the_matched_set(registry):
    facets = {"resultType": {"facets": [{"field": "type"}]}}
    everything = await _post(registry, "/explore", facets)
    assert everything["resultType"] == "facets"
    assert sum(b["count"] for b in everything["facets"]["type"]["buckets"]) == 3
    some = await _post(registry, "/explore", facets | {"query": {"text": "weather"}})
    assert [b["count"] for b in some["facets"]["type"]["buckets"]] == [1]


async def test_a_list_has_entries_and_how_many_there_are(registry):
    answer = await ask(registry, "GET", "/agents")
    assert answer.status == 200
    assert answer.json["total"] == len(answer.json["items"]) == 3
    for entry in answer.json["items"]:
        _check_entry(entry)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/search", b"{"),
        ("POST", "/search", b'{"query": {}}'),
        ("POST", "/explore", b"{}"),
        ("GET", "/agents?filter=type%20%3D%20MCP", b""),
    ],
)
async def test_errors_have_the_form_of_the_draft(registry, method, path, body):
    answer = await ask(registry, method, path, body, JSON)
    assert answer.status == 400
    assert answer.json["errorCode"] == "INVALID_ARGUMENT"
    assert answer.json["message"]


async def test_the_registry_is_listed_as_one_in_its_own_catalog(registry):
    catalog = (await ask(registry, "GET", CATALOG)).json
    assert [each for each in catalog_problems(catalog) if each.is_error] == []
    for entry in catalog["entries"]:
        _check_entry(entry)
    [own] = [each for each in catalog["entries"] if each["type"] in REFERRALS]
    base = own["url"].rstrip("/")
    assert base == registry
    answer = await _post(base, "/search", {"query": {"text": "time"}})
    assert answer["results"]
