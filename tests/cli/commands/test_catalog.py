"""``parley catalog``: what is shown and checked, and the DNS records that lead to it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

import parley
from parley import Agent
from parley.registry.served.catalog import ManifestSigner, manifest_of
from parley.security.signing.cards import sign_card
from parley.server.run import serving
from tests.client.card.signer import new_keys
from tests.kit.processes import Running

PATH = "/.well-known/ard.json"
AGENT = '''
from parley import Agent

agent = Agent("Time agent", description="Tells the time.", version="1.0.0")


@agent.skill(tags=["time"], examples=["What time is it?", "And in Tokyo?"])
async def tell(text: str) -> str:
    """Tells the time."""
    return "noon"
'''


@contextmanager
def running(app) -> Iterator[str]:
    """Serve an app in a thread of its own."""
    addresses: list[str] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(app) as url:
            addresses.append(url)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield addresses[0]
    finally:
        stop.set()
        thread.join()


def agent(name="Time agent"):
    made = Agent(name, description=f"{name}.", version="1.0.0")

    @made.skill(examples=["What time is it?", "And in Tokyo?"])
    async def tell(text: str) -> str:
        return "noon"

    return made


@pytest.fixture(scope="module")
def url():
    app = parley.asgi(
        {"/": agent(), "/boat": agent("Boat")},
        tenants={"acme": agent("Shop")},
        publisher="agent.localhost",
    )
    with running(app) as address:
        yield address


def serving_bytes(body, *, media_type="application/ai-catalog+json", status=200):
    async def answer(request):
        return Response(body, status_code=status, media_type=media_type)

    return running(Starlette(routes=[Route("/{path:path}", answer)]))


# show


def test_a_catalog_is_shown_with_the_catalogs_in_it(parley, url):
    ran = parley("catalog", "show", url)
    assert ran.status == 0
    assert ran.stdout.splitlines()[:3] == [
        f"Catalog: {url}{PATH}",
        "Host: agent.localhost",
        "Entries: 3",
    ]
    for line in (
        "Identifier: urn:air:agent.localhost:agent:time-agent",
        f"Address: {url}/boat/.well-known/agent-card.json",
        "Query: What time is it?",
        "Identity: https://agent.localhost (not signed)",
        f"Catalog: {url}/acme{PATH}",
        "Identifier: urn:air:agent.localhost:agent:acme:shop",
    ):
        assert line in ran.stdout.splitlines()


def test_the_document_is_shown_as_it_is(parley, url, tmp_path):
    ran = parley("catalog", "show", url, "-o", "json")
    assert ran.document["specVersion"] == "1.0"
    assert len(ran.document["entries"]) == 3
    (tmp_path / "kept.json").write_text(ran.stdout)
    assert parley("catalog", "show", "kept.json", "-o", "json").document == ran.document
    by_host = parley("catalog", "show", url.removeprefix("http://"), "-o", "json")
    assert by_host.document == ran.document


def test_a_catalog_inside_another_is_shown(parley, tmp_path):
    entry = {"identifier": "urn:air:e.org:a:b", "displayName": "B", "type": "x/y", "data": {}}
    document = {"specVersion": "1.0", "entries": [entry]}
    for number in range(8):
        nested = {
            "identifier": f"urn:air:e.org:c:{number}",
            "displayName": f"n{number}",
            "type": "application/ai-catalog+json",
            "data": document,
        }
        document = {"specVersion": "1.0", "entries": [nested]}
    (tmp_path / "nested.json").write_text(json.dumps(document))
    ran = parley("catalog", "show", "nested.json")
    assert ran.status == 0
    assert ran.stdout.count("Catalog: ") == 4
    assert "nested too deeply" in ran.stderr


def test_catalogs_of_other_servers_are_named_and_not_fetched(parley):
    asked = []

    async def other(request):
        asked.append(request.url.path)
        return Response(b"{}")

    with running(Starlette(routes=[Route("/{path:path}", other)])) as elsewhere:
        entry = {
            "identifier": "urn:air:e.org:c:other",
            "displayName": "Other",
            "type": "application/ai-catalog+json",
            "url": f"{elsewhere}/c.json",
        }
        body = json.dumps({"specVersion": "1.0", "entries": [entry]})
        with serving_bytes(body) as address:
            ran = parley("catalog", "show", address)
    assert ran.status == 0
    assert f"Address: {elsewhere}/c.json" in ran.stdout
    assert asked == []


def test_a_catalog_that_lists_itself_is_shown_once(parley):
    async def answer(request):
        entry = {
            "identifier": "urn:air:e.org:c:again",
            "displayName": "Again",
            "type": "application/ai-catalog+json",
            "url": str(request.url),
        }
        return Response(json.dumps({"specVersion": "1.0", "entries": [entry]}))

    with running(Starlette(routes=[Route("/{path:path}", answer)])) as address:
        ran = parley("catalog", "show", address)
    assert ran.status == 0
    assert ran.stdout.count("Catalog: ") == 1


def test_what_others_write_moves_no_cursor(parley, tmp_path):
    entry = {
        "identifier": "urn:air:e.org:a:b",
        "displayName": "\x1b[2JName\nAddress: https://evil.example",
        "type": "x/y",
        "url": "https://e.org/\x1b[0m",
        "description": "one\r\x1b]0;title\x07",
    }
    (tmp_path / "c.json").write_text(json.dumps({"specVersion": "1.0", "entries": [entry]}))
    ran = parley("catalog", "show", "c.json")
    assert "\x1b" not in ran.stdout
    assert "\nAddress: https://evil" not in ran.stdout


@pytest.mark.parametrize("command", ["show", "check"])
def test_what_cannot_be_had_is_told_with_a_status_of_its_own(parley, command, tmp_path):
    with serving_bytes(b"", status=404) as address:
        ran = parley("catalog", command, address)
        assert ran.status == 3
        assert "answered with status 404" in ran.stderr
        assert "--publisher example.com" in ran.stderr
    assert parley("catalog", command, address).status == 3
    assert parley("catalog", command, "no-such.json").status == 3
    assert parley("catalog", command, "a b").status == 2
    assert parley("catalog", command).status == 2
    (tmp_path / "bad.json").write_text("{")
    ran = parley("catalog", command, "bad.json")
    assert ran.status == 1
    assert "this is not JSON" in ran.stderr


def test_a_huge_answer_is_not_read_whole(parley):
    with serving_bytes(b" " * (9 * 1024 * 1024)) as address:
        ran = parley("catalog", "check", address)
        assert ran.status == 1
        assert "bytes" in ran.stderr


def test_redirects_are_followed_a_few_times(parley):
    async def forever(request):
        return RedirectResponse("/again.json")

    with running(Starlette(routes=[Route("/{path:path}", forever)])) as address:
        ran = parley("catalog", "show", address)
        assert ran.status == 3
        assert "redirects more than" in ran.stderr


# check


def test_a_server_of_ours_is_valid(parley, url):
    ran = parley("catalog", "check", url)
    assert ran.status == 0
    assert ran.stdout.splitlines() == [f"Catalog: {url}{PATH}", "Valid: yes"]
    for path in (f"/acme{PATH}", "/acme"):
        assert parley("catalog", "check", url + path).status == 0


def test_errors_are_told_with_their_places_and_reasons(parley, tmp_path):
    entry = {
        "identifier": "time",
        "displayName": "Time",
        "type": "application/x",
        "url": "https://e.org",
    }
    (tmp_path / "c.json").write_text(json.dumps({"specVersion": "1.0", "entries": [entry]}))
    ran = parley("catalog", "check", "c.json")
    assert ran.status == 1
    assert "Valid: no" in ran.stdout
    assert "Error: entries[0].identifier: 'time' is not of the form" in ran.stdout
    assert "Warning: entries[0].type" in ran.stdout
    ran = parley("catalog", "check", "c.json", "-o", "json")
    assert ran.status == 1
    assert ran.document["valid"] is False
    assert ran.document["problems"][0]["where"] == "entries[0].identifier"


def test_warnings_leave_a_catalog_valid(parley):
    entry = {
        "identifier": "urn:air:example.com:agent:time",
        "displayName": "Time",
        "type": "application/a2a-agent-card+json",
        "url": "https://example.com/card.json",
    }
    body = json.dumps({"specVersion": "1.0", "entries": [entry]})
    with serving_bytes(body, media_type="application/json") as address:
        ran = parley("catalog", "check", address)
    assert ran.status == 0
    assert "Warning: its media type is application/json" in ran.stdout
    assert "no representativeQueries" in ran.stdout


def test_the_cards_of_a_catalog_are_tried(parley, url):
    ran = parley("catalog", "check", url, "--cards")
    assert ran.status == 0
    assert ran.stdout.splitlines() == [f"Catalog: {url}{PATH}", "Valid: yes"]

    def entry(name, address):
        return {
            "identifier": f"urn:air:example.com:agent:{name}",
            "displayName": name,
            "type": "application/a2a-agent-card+json",
            "representativeQueries": ["One?", "Two?"],
            "url": address,
        }

    entries = [
        entry("other", f"{url}/boat/.well-known/agent-card.json"),
        entry("gone", f"{url}/gone.json"),
        entry("none", f"{url}{PATH}"),
        entry("down", "http://127.0.0.1:9/card.json"),
    ]
    with serving_bytes(json.dumps({"specVersion": "1.0", "entries": entries})) as address:
        assert parley("catalog", "check", address).status == 0
        ran = parley("catalog", "check", address, "--cards", "-o", "json")
    assert ran.status == 1
    found = {each["where"]: each for each in ran.document["problems"]}
    assert "calls the agent 'Boat'" in found["entries[0].url"]["problem"]
    assert not found["entries[0].url"]["error"]
    assert "answered with status 404" in found["entries[1].url"]["problem"]
    assert found["entries[2].url"]["error"]
    assert "cannot connect" in found["entries[3].url"]["problem"]


# dns


def test_records_of_a_server_are_made_of_its_catalog(parley, url):
    address = url.replace("127.0.0.1", "localhost")
    port = address.rpartition(":")[2]
    ran = parley("catalog", "dns", "--url", address)
    assert ran.status == 0
    records = [line for line in ran.stdout.splitlines() if not line.startswith(";")]
    assert [line.split(" ")[0] for line in records[::2]] == [
        "_entries._agents.agent.localhost.",
        "_index._agents.agent.localhost.",
        "_time-agent._a2a._agents.agent.localhost.",
        "_boat._a2a._agents.agent.localhost.",
    ]
    assert records[2] == (
        "_index._agents.agent.localhost. 3600 IN SVCB 1 localhost. "
        f'mandatory="alpn,port" alpn="http/1.1" port="{port}" '
        f'key65400="{address}{PATH}" key65409="ard.json"'
    )
    assert f'key65400="{address}/boat/.well-known/agent-card.json" key65402="a2a"' in records[6]


def test_records_of_agents_in_files_need_no_server(parley, tmp_path):
    (tmp_path / "time_agent.py").write_text(AGENT)
    words = ["--url", "https://agents.example.com/all/", "--publisher", "example.com"]
    ran = parley("catalog", "dns", "time_agent.py", *words, "--ttl", "60", "-o", "json")
    assert ran.status == 0
    assert [(each["name"], each["type"], each["ttl"]) for each in ran.document] == [
        ("_entries._agents.example.com.", "SVCB", 60),
        ("_entries._agents.example.com.", "TXT", 60),
        ("_index._agents.example.com.", "SVCB", 60),
        ("_index._agents.example.com.", "TXT", 60),
        ("_time-agent._a2a._agents.example.com.", "SVCB", 60),
        ("_time-agent._a2a._agents.example.com.", "TXT", 60),
    ]
    catalog = f"https://agents.example.com/all{PATH}"
    assert f'key65409="/all{PATH}"' in ran.document[0]["value"]
    assert f"ai-catalog={catalog}" in ran.document[1]["value"]
    assert "target=agents.example.com port=443" in ran.document[1]["value"]


def test_records_are_lines_of_a_zone_file(parley, tmp_path):
    zone = pytest.importorskip("dns.zone", reason="there is no dnspython")
    (tmp_path / "time_agent.py").write_text(AGENT)
    words = ["--url", "https://agents.example.com", "--publisher", "example.com"]
    ran = parley("catalog", "dns", "time_agent.py", *words, "--alpn", "h2,http/1.1")
    head = "@ 3600 IN SOA ns. root. 1 1 1 1 1\n@ 3600 IN NS ns.\n"
    read = zone.from_text(head + ran.stdout, origin="example.com.", relativize=False)
    name = "_entries._agents.example.com."
    assert read.find_rdataset("_index._agents.example.com.", "SVCB")
    (record,) = read.find_rdataset(name, "SVCB")
    assert record.target.to_text() == "agents.example.com."
    values = {int(key): value for key, value in record.params.items()}
    assert values[3].port == 443
    assert values[1].ids == (b"h2", b"http/1.1")
    assert values[65409].value == b"ard.json"
    (text,) = read.find_rdataset(name, "TXT")
    assert b"v=1 target=agents.example.com" in b"".join(text.strings)


def test_long_records_are_cut_into_strings(parley, tmp_path):
    (tmp_path / "time_agent.py").write_text(AGENT)
    url = "https://agents.example.com/" + "a" * 300
    words = ["--url", url, "--publisher", "example.com", "-o", "json"]
    ran = parley("catalog", "dns", "time_agent.py", *words)
    strings = re.findall(r'"([^"]*)"', ran.document[1]["value"])
    assert all(len(each) <= 255 for each in strings)
    assert f"ai-catalog={url}{PATH}" in "".join(strings)


def test_names_of_agents_are_labels(parley, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(AGENT.replace("Time agent", f"{name} agent"))
    words = ["--url", "https://agents.example.com", "--publisher", "example.com"]
    targets = ["/time_zone.v1=one.py", f"/{'long' * 30}=two.py"]
    ran = parley("catalog", "dns", *targets, *words)
    labels = re.findall(r"^_([^.]+)\._a2a", ran.stdout, flags=re.M)
    assert labels[0] == "time-zone-v1"
    assert all(len(label) < 63 for label in labels)


def test_agents_of_other_publishers_get_no_records(parley):
    def entry(identifier):
        return {
            "identifier": identifier,
            "displayName": "Time",
            "type": "application/a2a-agent-card+json",
            "url": "https://time.example.org/card.json",
        }

    entries = [entry("urn:air:a.example:agent:time"), entry("urn:air:b.example:agent:time")]
    body = json.dumps({"specVersion": "1.0", "entries": entries})
    with serving_bytes(body) as address:
        address = address.replace("127.0.0.1", "localhost")
        ran = parley("catalog", "dns", "--url", address)
        assert ran.status == 2
        assert "the agents of a.example, b.example" in ran.stderr
        ran = parley("catalog", "dns", "--url", address, "--publisher", "b.example")
        assert ran.status == 0
        assert "a.example" not in ran.stdout


def test_what_a_record_has_is_quoted(parley):
    entry = {
        "identifier": "urn:air:a.example:agent:time",
        "displayName": "Time",
        "type": "application/a2a-agent-card+json",
        "url": 'https://a.example/"\n_evil._agents 1 IN TXT "x\\',
    }
    with serving_bytes(json.dumps({"specVersion": "1.0", "entries": [entry]})) as address:
        ran = parley("catalog", "dns", "--url", address.replace("127.0.0.1", "localhost"))
    assert all(
        line.startswith((";", "_entries", "_index", "_time")) for line in ran.stdout.splitlines()
    )
    assert r"\"" in ran.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name the server with --url"),
        (["time_agent.py"], "need the public address and the domain"),
        (["time_agent.py", "--url", "https://a.example"], "need the public address"),
        (["--url", "http://x", "--publisher", "localhost"], "not a domain name"),
        (
            ["time_agent.py", "--url", "http://127.0.0.1", "--publisher", "a.example"],
            "127.0.0.1 is an IP address",
        ),
        (["time_agent.py", "--url", "nowhere", "--publisher", "a.example"], "is not an address"),
        (
            [
                "time_agent.py",
                "--url",
                "https://a.example",
                "--publisher",
                "a.example",
                "--namespace",
                "a b",
            ],
            "namespace= may have letters",
        ),
        (
            [
                "/a-b=time_agent.py",
                "/a/b=time_agent.py",
                "--url",
                "https://a.example",
                "--publisher",
                "a.example",
            ],
            "would both be published as urn:air:a.example:agent:a-b",
        ),
    ],
)
def test_records_that_lead_nowhere_are_refused(parley, tmp_path, words, said):
    (tmp_path / "time_agent.py").write_text(AGENT)
    ran = parley("catalog", "dns", *words)
    assert ran.status == 2
    assert said in ran.stderr


# serve


def test_a_server_publishes_with_an_option(parley, tmp_path):
    (tmp_path / "time_agent.py").write_text(AGENT)
    words = ["serve", "time_agent.py", "--port", "0", "--store", "memory:"]
    words += ["--publisher", "agent.localhost", "--namespace", "clocks"]
    with Running(words, tmp_path) as server:
        said = server.until("Ctrl-C stops the server")
        address = re.search(r"The catalog is at (http://\S+)", said)[1]
        ran = parley("catalog", "show", address)
        assert ran.field("Identifier") == "urn:air:agent.localhost:clocks:time-agent"


def test_a_server_publishes_with_variables(parley, tmp_path):
    (tmp_path / "time_agent.py").write_text(AGENT)
    words = ["serve", "time_agent.py", "--port", "0", "--store", "memory:"]
    with Running(words, tmp_path, PARLEY_PUBLISHER="agent.localhost") as server:
        said = server.until("Ctrl-C stops the server")
        assert "/.well-known/ard.json" in said


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_a_server_that_reloads_publishes_the_same(parley, tmp_path):
    pytest.importorskip("watchfiles")
    (tmp_path / "time_agent.py").write_text(AGENT)
    (tmp_path / "other.py").write_text(AGENT.replace("Time agent", "Other agent"))
    words = ["serve", "/time=time_agent.py", "/other=other.py", "--reload", "--port", "0"]
    words += ["--store", "memory:", "--publisher", "agent.localhost"]
    words += ["--namespace", "clocks", "--unlisted", "/other"]
    with Running(words, tmp_path) as server:
        said = server.until("Ctrl-C stops the server")
        address = re.search(r"The catalog is at (http://\S+)", said)[1]
        ran = parley("catalog", "show", address, "-o", "json")
        server.end(signal.SIGTERM)
    (entry,) = ran.document["entries"]
    assert entry["identifier"] == "urn:air:agent.localhost:clocks:time"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--publisher", "localhost"], "not a domain name such as example.com"),
        (["--namespace", "x"], "namespace= concerns the catalog"),
        (["--unlisted", "/"], "unlisted= concerns the catalog"),
        (["--publisher", "a.example", "--unlisted", "/x"], "neither an agent's path"),
    ],
)
def test_a_server_does_not_start_with_what_it_cannot_publish(parley, tmp_path, words, said):
    (tmp_path / "time_agent.py").write_text(AGENT)
    ran = parley("serve", "time_agent.py", "--store", "memory:", *words)
    assert ran.status == 2
    assert said in ran.stderr


def test_signatures_are_verified(parley):
    """What registries would reject is an error: a changed manifest, a changed card."""
    keys = new_keys("first")
    identifier = "urn:air:agent.localhost:agent:time"
    manifest = ManifestSigner(keys, None).sign(manifest_of(identifier, "agent.localhost"))
    card = {
        "name": "time", "description": "d", "version": "1", "skills": [],
        "supportedInterfaces": [
            {"url": "https://a.agent.localhost/", "protocolBinding": "JSONRPC",
             "protocolVersion": "1.0"}
        ],
        "capabilities": {}, "defaultInputModes": [], "defaultOutputModes": [],
    }  # fmt: skip
    entry = {
        "identifier": identifier,
        "displayName": "time",
        "type": "application/a2a-agent-card+json",
        "representativeQueries": ["One?", "Two?"],
        "data": json.loads(sign_card(json.dumps(card).encode(), keys.signers)),
        "trustManifest": msgspec.to_builtins(manifest),
    }
    pages = {"/.well-known/jwks.json": keys.published}

    async def page(request):
        return Response(
            json.dumps(pages[request.url.path]), media_type="application/ai-catalog+json"
        )

    def serve(**changes):
        pages[PATH] = {"specVersion": "1.0", "entries": [{**entry, **changes}]}

    with running(Starlette(routes=[Route(each, page) for each in (PATH, *pages)])) as address:
        serve()
        ran = parley("catalog", "check", address, "--cards")
        assert ran.stdout.splitlines() == [f"Catalog: {address}{PATH}", "Valid: yes"]
        serve(trustManifest={**entry["trustManifest"], "identityType": "other"})
        ran = parley("catalog", "check", address)
        assert ran.status == 1
        assert "Error: entries[0].trustManifest: the signature" in ran.stdout
        assert "was changed" in ran.stdout
        serve(data={**entry["data"], "version": "2"})
        assert parley("catalog", "check", address).status == 0
        ran = parley("catalog", "check", address, "--cards")
        assert ran.status == 1
        assert "Error: entries[0].data: no signature of its card is valid" in ran.stdout
        serve()
        pages["/.well-known/jwks.json"] = {}
        ran = parley("catalog", "check", address, "--cards")
        assert ran.status == 0
        assert "Warning: entries[0].trustManifest" in ran.stdout
        assert "cannot be checked" in ran.stdout
