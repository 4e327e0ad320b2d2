"""``parley registry serve``, ``parley agents publish`` and its sibling commands."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from parley.host.options import ServerOptions
from parley.registry.app.registry import Registry
from parley.registry.commands.registry import reached_at
from parley.server.run import serving
from tests.registry.app.serving import KEYS, PUBLISHER, SCHEME
from tests.registry.ingest.sites import HERE_ONLY, card, catalog, entry

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.7", "https://10.0.0.7:9010"),
        ("::1", "https://[::1]:9010"),
        # An address that means all interfaces identifies no registry.
        ("0.0.0.0", None),
        ("::", None),
    ],
)
def test_a_registry_is_known_by_an_address_that_others_reach(host: str, address: str | None):
    options = ServerOptions(host=host, port=9010, tls_cert="c.pem", tls_key="k.pem")
    assert reached_at(options) == address


# -- ``parley agents publish`` and its sibling commands, with a running registry -------------------


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
    """A site, and the file of the document that it serves; the test writes the file."""
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


@pytest.mark.slow
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
    assert ran.status == 1  # an entry belongs to another publisher
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


@pytest.mark.slow
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
