"""A registry's lifecycle: crawling, stopping, and continuing after a restart."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from parley.host.egress import read_egress
from parley.registry.app.registry import Registry, tasks_url
from parley.registry.records import Source, SourceKind
from parley.server.app import Settings
from parley.server.run import serving
from tests.kit.http import ask
from tests.kit.processes import Running, free_port
from tests.kit.scripted_server import scripted
from tests.kit.waiting import until
from tests.registry.app.serving import SCHEME, agents, key, served
from tests.registry.ingest.sites import WebSite

pytestmark = pytest.mark.anyio

NEED = "find me an agent that converts currencies"


async def _total(url: str) -> int:
    return (await ask(url, "GET", "/agents")).json["total"]


async def _is(url: str, count: int) -> bool:
    return await _total(url) == count


@pytest.mark.service
async def test_processes_share_a_registry_on_postgresql(postgres_url):
    async with (
        agents() as there,
        served(postgres_url, sources=[there]) as one,
        served(postgres_url) as other,
    ):
        await until(lambda: _is(one.url, 2))
        assert await other.names(NEED) == ["Currency agent"]
        assert (await other.get("/health/ready")).status == 200


def test_a_file_that_is_no_catalog_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        Registry("memory:", entries=[tmp_path / "nowhere.json"])
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match="other"):
        Registry("memory:", entries=[tmp_path / "other.json"])


@pytest.mark.slow
async def test_an_operator_adds_a_source_and_removes_it(tmp_path):
    async with agents() as there:
        places = read_egress(["127.0.0.0/8"])
        async with served(auth=SCHEME, public_search=True, egress=places) as here:
            url = f"{there}/.well-known/ai-catalog.json"
            added = await here.post("/operator/sources", {"url": url}, key("root"))
            assert added.status == 201
            await until(lambda: _is(here.url, 2))
            removed = await here.delete(f"/operator/sources?url={url}", key("root"))
            assert removed.status == 204
            assert await _total(here.url) == 0


async def test_an_operator_takes_over_a_source_that_another_site_named():
    async with served(auth=SCHEME) as here:
        url, other = "https://a.example/catalog.json", "https://b.example/"
        found = Source(
            url=url, kind=SourceKind.CATALOG, found_by=other, settings={"audience": ["scope:x"]}
        )
        await here.registry.index.add_sources([found])
        for status in (201, 409):
            added = await here.post("/operator/sources", {"url": url, "vouches": True}, key("root"))
            assert added.status == status
        source = await here.registry.index.source(url)
        assert source.found_by == ""
        assert source.settings == {"authority": "operator", "audience": ["scope:x"]}


@pytest.mark.slow
async def test_registries_in_a_circle_answer_each_search_once():
    """Each has one entry of its own, and queries the next registry."""
    async with agents() as there:
        sockets = [free_port() for _ in range(3)]
        registries = [
            Registry(
                "memory:",
                url=f"http://127.0.0.1:{port}",
                sources=[there] if place == 2 else [],
                upstreams=[f"http://127.0.0.1:{sockets[(place + 1) % 3]}"],
                settings=Settings(),
                egress=read_egress(["127.0.0.0/8"]),
            )
            for place, port in enumerate(sockets)
        ]
        async with (
            serving(registries[0].app, port=sockets[0]) as one,
            serving(registries[1].app, port=sockets[1]),
            serving(registries[2].app, port=sockets[2]) as three,
        ):
            await until(lambda: _is(three, 2))
            body = json.dumps({"query": {"text": NEED}}).encode()
            answer = await ask(one, "POST", "/search", body, {"Content-Type": "application/json"})
            assert answer.status == 200
            found = answer.json["results"]
            assert [each["displayName"] for each in found] == ["Currency agent"]
            assert found[0]["source"].rstrip("/") == three
            asked = json.dumps({"query": {"text": NEED}, "federation": "referrals"}).encode()
            answer = await ask(one, "POST", "/search", asked, {"Content-Type": "application/json"})
            assert answer.json["results"] == []
            [referral] = answer.json["referrals"]
            assert str(sockets[1]) in referral["url"]


def test_tasks_and_keys_are_beside_the_index():
    assert tasks_url("sqlite:///registry.db") == "sqlite:///registry-tasks.db"
    assert tasks_url("sqlite:////var/lib/r.db") == "sqlite:////var/lib/r-tasks.db"
    assert tasks_url("postgresql://host/db") == "postgresql://host/db"
    schema = "postgresql://host/db?schema=registry&sslmode=require"
    assert tasks_url(schema) == "postgresql://host/db?schema=registry_tasks&sslmode=require"
    assert tasks_url("memory:") == "memory:"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
async def test_a_registry_that_is_killed_while_it_crawls_continues(tmp_path: Path):
    held, entries = asyncio.Event(), 30
    site = WebSite()

    async def slow(exchange):
        await held.wait()
        await exchange.body_of(b"", 404)

    async with scripted(site) as server:
        site.url = server.url
        listed = [site.serve_card(f"agent{n}") for n in range(entries)]
        for n in range(entries // 2, entries):
            site.pages[f"/agent{n}.json"] = slow
        url = site.serve(*listed)
        words = ["registry", "serve", "--port", "0", "--crawl", url, "--log-level", "warning"]
        with Running(words, tmp_path) as one:
            await asyncio.to_thread(one.until, "Ctrl-C")
            await until(lambda: len(set(site.asked)) > entries // 2)
            one.end(signal.SIGKILL)
        held.set()
        for n in range(entries // 2, entries):
            site.serve_card(f"agent{n}")
        with Running(words, tmp_path) as two:
            said = await asyncio.to_thread(two.until, "Ctrl-C")
            address = next(line.split()[-1] for line in said.splitlines() if "address" in line)
            await until(lambda: _is(address, entries))
            two.end(signal.SIGTERM)
