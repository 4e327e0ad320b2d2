"""``parley registry serve``."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from parley.host.options import ServerOptions
from parley.registry.commands.registry import reached_at
from tests.kit.http import ask
from tests.kit.processes import Running
from tests.kit.waiting import until
from tests.registry.app.serving import agents

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}


def _address(said: str) -> str:
    return next(line.split()[-1] for line in said.splitlines() if "address" in line)


async def test_a_registry_reads_a_catalog_and_says_where_it_is(tmp_path: Path):
    async with agents() as there:
        words = ["registry", "serve", "--port", "0", "--crawl", there, "--publisher", "a.localhost"]
        with Running(words, tmp_path) as process:
            said = await asyncio.to_thread(process.until, "Ctrl-C")
            url = _address(said)
            assert f"{url}/a2a" in said
            assert "kept between runs (sqlite:///registry.db)" in said

            async def is_read():
                return (await ask(url, "GET", "/agents")).json["total"] == 2

            await until(is_read)
            await until(lambda: process.output["stderr"].count(" is healthy") == 2, seconds=30)
            assert "calling JSONRPC" not in process.output["stderr"]  # at each probe
            if sys.platform != "win32":
                assert process.end(signal.SIGTERM) == 0
    assert (tmp_path / "registry.db").exists()


async def test_callers_have_keys_of_the_registrys_store(tmp_path: Path):
    store = f"sqlite:///{tmp_path}/registry-tasks.db"
    words = ["registry", "serve", "--port", "0", "--api-keys", "--public-search"]
    with Running(words, tmp_path) as process:
        url = _address(await asyncio.to_thread(process.until, "Ctrl-C"))
        scope = ["--scope", "registry:operate"]
        create = ["keys", "create", "--owner", "me", *scope, "--store", store, "-o", "json"]
        with Running(create, tmp_path) as making:
            assert await asyncio.to_thread(making.end) == 0
            key = json.loads(making.stdout)["key"]
        assert (await ask(url, "GET", "/agents")).status == 200
        assert (await ask(url, "GET", "/operator/sources")).status == 401
        answer = await ask(url, "GET", "/operator/sources", b"", {"X-API-Key": key})
        assert (answer.status, answer.json) == (200, {"sources": []})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--host", "0.0.0.0"], "--allow-anonymous"),
        (["--host", "0.0.0.0", "--api-keys", "--public-search"], "--allow-anonymous"),
        (["--public-search"], "auth"),
        (["--mtls"], "--tls-client-ca"),
        (["--oidc", "https://login.example.com"], "--audience"),
        (["--crawl", "ftp://example.com"], "ftp"),
        (["--entries", "nowhere.json"], "nowhere.json"),
        (["--store", "mysql://host"], "mysql"),
        (["--limit", "5/minute on nothing"], "nothing"),
        (["--publisher", "no domain"], "domain"),
        (["--allow-private", "not a place!"], "not a place!"),
        (["--upstream", "ftp://example.com"], "ftp"),
        (["--log-level", "loud"], "--log-level"),
    ],
)
def test_what_cannot_be_served_is_wrong_usage(tmp_path, words, says):
    with Running(["registry", "serve", "--port", "0", *words], tmp_path) as process:
        assert process.end() == 2
    assert says in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.7", "https://10.0.0.7:9010"),
        ("::1", "https://[::1]:9010"),
        # Two registries that listen on all addresses are not one.
        ("0.0.0.0", None),
        ("::", None),
    ],
)
def test_a_registry_is_known_by_an_address_that_others_reach(host: str, address: str | None):
    options = ServerOptions(host=host, port=9010, tls_cert="c.pem", tls_key="k.pem")
    assert reached_at(options) == address


def test_a_store_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "registry.db").write_bytes(b"no database" * 100)
    with Running(["registry", "serve", "--port", "0"], tmp_path) as process:
        assert process.end() == 1
    assert "PARLEY_ERR_STORE" in process.stderr
    assert "Traceback" not in process.stderr
