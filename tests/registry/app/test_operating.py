"""What an operator sees of a registry, and has read again: with keys and without, in a process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.http import ask
from tests.kit.processes import Running, free_port
from tests.kit.scripted_server import Exchange, card
from tests.kit.waiting import let_time_pass, until
from tests.registry.app.serving import SCHEME, key, served
from tests.registry.ingest.dns_server import dns_server
from tests.registry.ingest.sites import A2A, CATALOG, HERE_ONLY, WebSite, entry, site, urn

pytestmark = pytest.mark.anyio

STOLEN = urn("stolen", "elsewhere.example")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'registry.db'}"
    made: str = request.getfixturevalue("postgres_url")
    return made


@contextlib.asynccontextmanager
async def registry(folder: Path, *words: str) -> AsyncIterator[tuple[str, Running]]:
    """Run ``parley registry serve``; yield its address and the process."""
    with Running(["registry", "serve", "--port", "0", *words], folder) as process:
        said = await asyncio.to_thread(process.until, "Ctrl-C")
        yield next(each.split()[-1] for each in said.splitlines() if "address" in each), process


async def parley(folder: Path, url: str, *words: str) -> Any:
    """Return the exit status and the answer of a command of ``parley agents``."""
    with Running(["agents", *words, "--registry", url, "-o", "json"], folder) as process:
        status = await asyncio.to_thread(process.end)
        return status, json.loads(process.stdout) if process.stdout else process.stderr


def mixed(web: WebSite) -> str:
    """Serve a catalog with an entry that is right, and two that are refused."""
    early = {"identifier": "urn:ai:agent.localhost:test:early", "displayName": "E", "type": A2A}
    stolen = entry("stolen", f"{web.url}/good.json", "elsewhere.example")
    return web.serve(web.serve_card("good"), {**early, "url": f"{web.url}/good.json"}, stolen)


async def test_without_keys_the_operator_of_this_machine_sees_what_is_refused(
    tmp_path: Path, store: str
) -> None:
    async with site() as web:
        url = mixed(web)
        async with registry(tmp_path, "--crawl", url, "--store", store) as (here, process):
            status, found = await parley(tmp_path, here, "waiting")
            assert status == 0
            reasons = {each["identifier"]: each["reason"] for each in found["entries"]}
            assert set(reasons) == {STOLEN, "urn:ai:agent.localhost:test:early"}
            assert "write urn:air:" in reasons["urn:ai:agent.localhost:test:early"]
            for name, reason in reasons.items():
                assert f"the entry {name} of {url} is rejected: {reason}" in process.stderr
            # It decides nothing, and is nobody's but this machine's.
            refused = await ask(here, "DELETE", f"/operator/sources?url={url}")
            assert refused.status == 401
            elsewhere = await ask(
                here, "GET", "/operator/entries", headers={"Host": "evil.example"}
            )
            assert elsewhere.status == 400 or elsewhere.status == 421 or elsewhere.status == 403
            # The source is corrected, and read again at once.
            good, also = web.serve_card("good"), web.serve_card("also")
            web.serve(good, also)
            status, found = await parley(tmp_path, here, "refresh", url)
            assert (status, [each["state"] for each in found["sources"]]) == (0, ["ok"])
            assert (await ask(here, "GET", "/agents")).json["total"] == 2


async def test_a_refresh_reads_a_site_its_catalogs_and_cards_that_are_fresh(store: str) -> None:
    async with (
        site() as web,
        served(store, auth=SCHEME, public_search=True, egress=HERE_ONLY) as here,
    ):
        web.serve(web.serve_card("one"))
        web.headers["/one.json"] = web.headers[CATALOG] = {"cache-control": "max-age=86400"}
        root = f"{web.url}/"
        added = await here.post("/operator/sources", {"url": root}, key("root"))
        assert added.status == 201

        async def name() -> str:
            found = (await here.get(f"/agents/{urn('one')}")).json
            return found.get("registry", {}).get("details", {}).get("card", {}).get("name", "")

        await until(lambda: _is(name, "one"), 20)
        web.pages["/one.json"] = card(web.url, name="renamed")
        for who, status in ((None, 401), ("ada", 403), ("root", 200)):
            answer = await here.post("/operator/refresh", {"url": root}, key(who) if who else {})
            assert answer.status == status
        states = {each["url"]: each["state"] for each in answer.json["sources"]}
        assert states == {root: "ok", web.url + CATALOG: "ok"}
        assert await name() == "renamed"
        unknown = await here.post("/operator/refresh", {"url": "https://x.example"}, key("root"))
        assert (unknown.status, unknown.json["errorCode"]) == (404, "NOT_FOUND")
        lines = (await here.get("/operator/audit", key("root"))).json["lines"]
        assert [each["subject"] for each in lines if each["kind"] == "source.refreshed"] == [root]


async def test_terms_of_other_namespaces_are_found_by_their_iris_in_every_store(store: str) -> None:
    listed = {
        **entry("weather", "https://x.example/mcp", "x.example", type="application/mcp"),
        "@context": {"v": "https://vocab.example/ns#"},
        "v:tier": "gold",
    }
    async with served(store, auth=SCHEME, public_search=True, egress=HERE_ONLY) as here:
        body = {"catalog": {"entries": [listed]}}
        assert (await here.post("/operator/import/mine", body, key("root"))).status == 200
        for tier, found in (("gold", 1), ("iron", 0)):
            query = {
                "@context": {"other": "https://vocab.example/ns#"},
                "text": "weather",
                "filter": {"other:tier": tier},
            }
            answer = await here.post("/search", {"query": query})
            assert len(answer.json["results"]) == found
        shown = (await here.get(f"/agents/{urn('weather', 'x.example')}")).json
        assert shown["@context"] == listed["@context"]
        assert shown["v:tier"] == "gold"


async def test_hosts_are_looked_up_at_the_name_servers_that_are_named() -> None:
    async with dns_server() as dns, site() as web:
        web.serve(web.serve_card("one"))
        dns.add("shop.test", "A", "127.0.0.1")
        url = web.url.replace("127.0.0.1", "shop.test") + CATALOG
        places = ["shop.test", "127.0.0.0/8"]
        options: dict[str, Any] = {"nameservers": [dns.address], "allow_private": places}
        async with served(sources=[url], **options) as here:

            async def state() -> str:
                source = await here.registry.index.source(url)
                return source.state if source else ""

            await until(lambda: _is(state, "ok"), 20)


async def _is(given: Any, wanted: Any) -> bool:
    return await given() == wanted


async def test_a_source_that_is_down_at_the_start_is_said_to_be_and_read_when_it_is_back(
    tmp_path: Path, store: str
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}{CATALOG}"
    words = ("--crawl", url, "--store", store)
    for _ in range(2):  # a further start says it again
        async with registry(tmp_path, *words) as (here, process):
            await asyncio.to_thread(process.until, f"the source {url} is failed: ")
            status, found = await parley(tmp_path, here, "waiting")
            [down] = found["sources"]
            assert (status, down["url"], down["state"]) == (0, url, "failed")
            assert "nothing answers there" in down["reason"]
    listed = {"entries": [{**entry("w", "https://x.example/mcp"), "type": "application/mcp"}]}
    async with registry(tmp_path, *words) as (here, process):
        await asyncio.to_thread(process.until, f"the source {url} is failed: ")
        (tmp_path / ".well-known").mkdir()
        (tmp_path / ".well-known" / "ard.json").write_text(json.dumps(listed))
        server = ["-m", "http.server", str(port), "--bind", "127.0.0.1"]
        with Running(server, tmp_path, command=[sys.executable]):

            async def total() -> int:
                return int((await ask(here, "GET", "/agents")).json["total"])

            await until(lambda: _is(total, 1), 60)
            await asyncio.to_thread(process.until, f"the source {url} is read again")


@pytest.mark.service
async def test_a_registry_that_is_killed_while_it_crawls_is_replaced_within_its_lease(
    tmp_path: Path, postgres_url: str
) -> None:
    is_killed = asyncio.Event()

    async def held(exchange: Exchange) -> None:
        if not is_killed.is_set():
            await exchange.never()
        await exchange.json(card(web.url, name="one"))

    async with site() as web:
        web.pages["/one.json"] = held
        url = web.serve(entry("one", f"{web.url}/one.json"))
        words = ("--crawl", url, "--store", postgres_url)
        async with registry(tmp_path, *words) as (_, process):
            await until(lambda: "/one.json" in web.asked, 20)
            await let_time_pass(6)  # its claim was renewed, and is as long as ever
            process.process.kill()
        began = time.monotonic()
        is_killed.set()
        async with registry(tmp_path, *words) as (here, _):

            async def total() -> int:
                return int((await ask(here, "GET", "/agents")).json["total"])

            await until(lambda: _is(total, 1), 60)
        assert time.monotonic() - began < 30
