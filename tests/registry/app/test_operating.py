"""An operator's view of a registry process, and manual refreshes, with and without keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.http import ask
from tests.kit.processes import Running
from tests.kit.scripted_server import Exchange, card
from tests.kit.waiting import let_time_pass, until
from tests.registry.app.serving import SCHEME, key, served
from tests.registry.ingest.sites import CATALOG, HERE_ONLY, entry, site, urn

pytestmark = pytest.mark.anyio


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
    """Return the exit status and the output of a ``parley agents`` command."""
    with Running(["agents", *words, "--registry", url, "-o", "json"], folder) as process:
        status = await asyncio.to_thread(process.end)
        return status, json.loads(process.stdout) if process.stdout else process.stderr


@pytest.mark.slow
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


async def _is(given: Any, wanted: Any) -> bool:
    return await given() == wanted


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
            await let_time_pass(6)  # the claim is renewed for its full duration
            process.process.kill()
        began = time.monotonic()
        is_killed.set()
        async with registry(tmp_path, *words) as (here, _):

            async def total() -> int:
                return int((await ask(here, "GET", "/agents")).json["total"])

            await until(lambda: _is(total, 1), 60)
        assert time.monotonic() - began < 30
