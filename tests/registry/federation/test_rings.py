"""Registries that query each other in circles, also in separate processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

import parley
from parley.registry.federation.upstream import HEADER
from tests.kit.processes import free_port
from tests.kit.waiting import wait_until
from tests.registry.federation.registries import entry, registries

pytestmark = pytest.mark.anyio


CATALOGS = [
    [entry("urn:air:one.example:agent:fx", "Currency conversion of One")],
    [entry("urn:air:two.example:agent:fx", "Currency conversion of Two")],
    [entry("urn:air:three.example:agent:fx", "Currency conversion of Three")],
]
MESH = {0: [1, 2], 1: [0, 2], 2: [0, 1]}


@pytest.mark.slow
async def test_federation_none_asks_nobody_and_referrals_name_them(tmp_path) -> None:
    async with registries(tmp_path, CATALOGS, MESH) as (urls, apps):  # noqa: SIM117
        async with parley.RemoteRegistry(urls[0]) as registry:
            [alone] = await registry.find("currency conversion", federation="none")
            [first] = await registry.find("currency conversion", federation="referrals")
            referred = await registry.referrals()
    assert alone.identifier == first.identifier == "urn:air:one.example:agent:fx"
    assert apps[1].searches == apps[2].searches == 0
    assert [each.url for each in referred] == [f"{urls[1]}/search", f"{urls[2]}/search"]
    assert all(each.type == "application/ai-registry+json" for each in referred)
    assert all(each.identifier.startswith("urn:air:") for each in referred)


@pytest.mark.slow
async def test_a_referral_is_the_address_of_a_registry(tmp_path) -> None:
    async with registries(tmp_path, CATALOGS, MESH) as (urls, _):
        async with parley.RemoteRegistry(urls[0]) as registry:
            referred = await registry.referrals()
        [found] = await parley.find(
            "currency conversion", registry=referred[0].url, federation="none"
        )
    assert found.identifier == "urn:air:two.example:agent:fx"


@pytest.mark.slow
async def test_the_pages_of_three_registries_have_each_entry_once(tmp_path) -> None:
    catalogs = [
        [
            entry(f"urn:air:{name}.example:agent:fx-{number}", f"Currency conversion {number}")
            for number in range(15)
        ]
        for name in ("one", "two", "three")
    ]
    # Two registries list the same entries, which count once.
    catalogs[2] += catalogs[1][:5]
    async with registries(tmp_path, catalogs, MESH) as (urls, _):
        found = await parley.find("currency conversion", registry=urls[0], limit=100)
        names: list[str] = []
        async with aiohttp.ClientSession() as session:
            token, pages = "", 0
            while pages < 20:
                asked = {"query": {"text": "currency conversion"}, "pageSize": 7}
                asked |= {"pageToken": token} if token else {}
                async with session.post(f"{urls[0]}/search", json=asked) as answer:
                    body = await answer.json()
                names += [each["identifier"] for each in body["results"]]
                pages += 1
                token = body.get("pageToken", "")
                if not token:
                    break
    assert len({each.identifier for each in found}) == len(found) == 45
    assert len(names) == len(set(names)) == 45
    assert pages < 20


@pytest.mark.slow
async def test_a_malformed_header_is_refused(tmp_path) -> None:
    async with registries(tmp_path, CATALOGS[:1], {}) as (urls, _), aiohttp.ClientSession() as http:
        asked = {"query": {"text": "currency"}}
        for header in ("nonsense", "query=1; left=2", "query=" + "a" * 16 + "; left=-1; ms=2"):
            async with http.post(f"{urls[0]}/search", json=asked, headers={HEADER: header}) as said:
                body = await said.json()
            assert (said.status, body["errorCode"]) == (400, "INVALID_ARGUMENT")
            assert HEADER in body["message"]


# -- three registry processes in a circle: one is killed, the others answer ------------------------


NAMES = ("one", "two", "three")


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[tuple[list[str], list[subprocess.Popen[bytes]]]]:
    with ExitStack() as stack:
        ports = [free_port() for _ in NAMES]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        processes = []
        for number, name in enumerate(NAMES):
            catalog = tmp_path / f"{name}.json"
            listed = [entry(f"urn:air:{name}.example:agent:fx", f"Currency conversion of {name}")]
            catalog.write_text(json.dumps({"specVersion": "1.0", "entries": listed}))
            command = [sys.executable, "-m", "parley", "registry", "serve"]
            command += ["--port", str(ports[number]), "--entries", str(catalog)]
            command += ["--store", f"sqlite:///{tmp_path}/{name}.db"]
            command += ["--upstream", urls[(number + 1) % len(urls)]]
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        yield urls, processes


def found_at(url: str, federation: str = "auto") -> set[str]:
    try:
        found = parley.find_sync(
            "currency conversion", registry=url, federation=federation, retries=0, timeout=10
        )
    except parley.ClientError:
        return set()
    return {each.identifier.split(":")[2].partition(".")[0] for each in found}


@pytest.mark.slow
def test_a_circle_of_processes_goes_on_when_one_is_killed(
    ring: tuple[list[str], list[subprocess.Popen[bytes]]],
) -> None:
    urls, processes = ring
    for url, name in zip(urls, NAMES, strict=True):
        wait_until(lambda url=url, name=name: found_at(url, "none") == {name}, 60)
    for url in urls:
        wait_until(lambda url=url: found_at(url) == set(NAMES), 30)
    os.kill(processes[1].pid, signal.SIGKILL)
    processes[1].wait()
    assert found_at(urls[0]) == {"one"}
    assert found_at(urls[2]) == {"one", "three"}


async def test_the_same_search_from_many_clients_at_once_is_passed_on_once(tmp_path) -> None:
    async with registries(tmp_path, CATALOGS, MESH) as (urls, apps):
        async with parley.RemoteRegistry(urls[0]) as registry:
            every = await asyncio.gather(*(registry.find("currency conversion") for _ in range(8)))
        assert [len(found) for found in every] == [3] * 8
        assert apps[1].searches <= 8
        assert apps[1].searches == apps[2].searches
