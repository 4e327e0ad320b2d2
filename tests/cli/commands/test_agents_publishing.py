"""``parley agents publish`` and its siblings, against a registry that is served."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from parley.registry.app.registry import Registry
from parley.server.run import serving
from tests.registry.app.serving import KEYS, PUBLISHER, SCHEME
from tests.registry.ingest.sites import HERE_ONLY, card, catalog, entry

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
    assert "elsewhere.example is not proved" in ran.stdout
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
    assert "say why" in ran.stderr
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
    assert "is read from now on" in ran.stderr
    ran = parley("agents", "import", "https://agents.example.com", *root)
    assert "is read already" in ran.stderr
    ran = parley("agents", "prove", "example.com", "--check", "--give-up", *root)
    assert ran.status == 2
    ran = parley("agents", "published", "--registry", registry)
    assert ran.status == 4
