"""Agentic Resource Discovery: the official tool and our own cases, against a real process."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from conformance.ard import CATALOG, SCENES, registry_process

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
    """A process that has crawled it."""
    process = registry_process("--crawl", agents, "--store", "memory:")
    url = await asyncio.to_thread(process.__enter__)
    yield url
    await asyncio.to_thread(process.__exit__, None, None, None)


@pytest.mark.slow
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


async def _post(url, path, body):

    answer = await ask(url, "POST", path, json.dumps(body).encode(), JSON)
    assert answer.status == 200, answer.body
    return answer.json


def _check_entry(entry):
    """Check the rules of an entry (ARD §4.2)."""
    assert URN.fullmatch(entry["identifier"])
    assert entry["displayName"]
    assert "/" in entry["type"]
    assert ("url" in entry) != ("data" in entry)


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
