"""``parley registry serve``, and ``parley agents publish`` and its siblings."""

from __future__ import annotations

import asyncio
import http.server
import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.host.options import ServerOptions
from parley.registry.app.registry import Registry
from parley.registry.commands.registry import reached_at
from parley.server.run import serving
from tests.kit.http import ask
from tests.kit.processes import Running
from tests.kit.waiting import until
from tests.registry.app.serving import KEYS, PUBLISHER, SCHEME, agents
from tests.registry.ingest.sites import HERE_ONLY, card, catalog, entry

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


# -- ``parley agents publish`` and its siblings, against a registry that is served -----------------


ONE = f"urn:air:{PUBLISHER}:test:one"
SPAM = "urn:air:elsewhere.example:test:spam"


@pytest.fixture
def registry(monkeypatch) -> Iterator[str]:
    monkeypatch.delenv("PARLEY_REGISTRY", raising=False)
    made = Registry("memory:", auth=SCHEME, public_search=True, egress=HERE_ONLY)
    started, addresses = threading.Event(), []
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        async with serving(made.app) as url:
            addresses.append(url)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(20)
    yield addresses[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join(20)
    loop.close()


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "catalog.json"
    listed = entry("one", data=card("http://127.0.0.1:1", name="One"))
    stolen = entry("spam", publisher="elsewhere.example", data=card("http://127.0.0.1:1"))
    path.write_text(json.dumps(catalog(listed, stolen)))
    return str(path)


@pytest.fixture
def web(tmp_path) -> Iterator[tuple[str, object]]:
    """A site whose document a test writes."""
    folder = tmp_path / "site"
    (folder / ".well-known").mkdir(parents=True)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **options):
            super().__init__(*args, directory=str(folder), **options)

        def log_message(self, format, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder / ".well-known/parley-registry.json"
    server.shutdown()
    server.server_close()
    thread.join()


def options(registry: str, name: str) -> list[str]:
    return ["--registry", registry, "--api-key", KEYS[name]]


def test_a_domain_is_proved_and_its_entries_published_and_withdrawn(parley, registry, file, web):
    ada = options(registry, "ada")
    url, document = web
    ran = parley("agents", "publish", file, *ada, "-o", "json")
    assert ran.status == 1
    assert {each["standing"] for each in ran.document["refused"]} == {"refused"}
    ran = parley("agents", "prove", PUBLISHER, "--origin", url, *ada, "-o", "json")
    assert ran.status == 0, ran.stderr
    document.write_text(json.dumps(ran.document["document"]))
    ran = parley("agents", "prove", PUBLISHER, "--origin", url, "--check", *ada)
    assert ran.status == 0, ran.stderr
    assert "is proved by well-known" in ran.stderr
    ran = parley("agents", "publish", file, *ada)
    assert ran.status == 1  # one of them is somebody else's
    assert "State: listed" in ran.stdout
    assert "has not proved elsewhere.example" in ran.stdout
    ran = parley("agents", "published", *ada)
    assert ran.field("Identifier") == ONE
    assert parley("agents", "heartbeat", ONE, *ada).status == 0
    assert parley("agents", "heartbeat", ONE, *options(registry, "bob")).status == 4
    assert parley("agents", "withdraw", ONE, *options(registry, "bob")).status != 0
    ran = parley("agents", "withdraw", ONE, *ada)
    assert "is withdrawn" in ran.stderr
    assert parley("agents", "prove", PUBLISHER, "--give-up", *ada).status == 0


def test_an_operator_imports_rejects_and_approves(parley, registry, file):
    root = options(registry, "root")
    assert parley("agents", "import", file, *options(registry, "ada")).status != 0
    ran = parley("agents", "import", file, *root, "-o", "json")
    assert ran.status == 0, ran.stderr
    assert [each["standing"] for each in ran.document["entries"]] == ["listed", "listed"]
    ran = parley("agents", "reject", SPAM, *root)
    assert ran.status != 0
    assert "give a reason" in ran.stderr
    assert parley("agents", "reject", SPAM, "--reason", "spam", *root).status == 0
    ran = parley("agents", "waiting", *root)
    assert ran.field("Identifier") == SPAM
    assert "rejected: spam" in ran.stdout
    assert parley("agents", "approve", SPAM, "--reason", "a mistake", *root).status == 0
    assert "there are none" in parley("agents", "waiting", *root).stderr


def test_a_source_is_added_and_wrong_usage_named(parley, registry):
    root = options(registry, "root")
    ran = parley("agents", "import", "https://agents.example.com", *root)
    assert ran.status == 0, ran.stderr
    assert "is now a source of the registry" in ran.stderr
    ran = parley("agents", "import", "https://agents.example.com", *root)
    assert "is a source already" in ran.stderr
    ran = parley("agents", "prove", "example.com", "--check", "--give-up", *root)
    assert ran.status == 2
    ran = parley("agents", "published", "--registry", registry)
    assert ran.status == 4
