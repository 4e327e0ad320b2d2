"""``parley catalog``: ``show``, ``check``, and the DNS records that lead to a catalog."""

from __future__ import annotations

import asyncio
import json
import re
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
    """Serve an app in a thread."""
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


def test_names_of_agents_are_labels(parley, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(AGENT.replace("Time agent", f"{name} agent"))
    words = ["--url", "https://agents.example.com", "--publisher", "example.com"]
    targets = ["/time_zone.v1=one.py", f"/{'long' * 30}=two.py"]
    ran = parley("catalog", "dns", *targets, *words)
    labels = re.findall(r"^_([^.]+)\._a2a", ran.stdout, flags=re.M)
    assert labels[0] == "time-zone-v1"
    assert all(len(label) < 63 for label in labels)


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


def test_signatures_are_verified(parley):
    """An error is reported for a changed manifest and a changed card, as registries reject both."""
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
