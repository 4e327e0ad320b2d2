"""``parley conformance``: what it prints and writes, and its exit status."""

from __future__ import annotations

import json
import sys

import pytest

import parley as house
from tests.cli.commands.test_catalog import running
from tests.testing.conformance.tried import DEFECTS, agent


@pytest.fixture(scope="module")
def url():
    with running(house.asgi(agent, drain=0.0)) as address:
        yield address


@pytest.fixture(scope="module")
def defective():
    with running(house.asgi(agent, drain=0.0, middleware=[DEFECTS["RPC-3"]])) as address:
        yield address


ONLY = ("--protocol-version", "1.0", "--binding", "jsonrpc", "--only", "RPC", "--only", "CARD")


def test_a_server_is_tried(parley, url):
    ran = parley("conformance", "server", url, *ONLY)
    assert ran.status == 0, ran
    assert ran.stdout.splitlines()[0] == f"server {url}"
    assert "JSONRPC 1.0: 11 passed, 0 failed, 0 skipped" in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("conforms: ")
    whole = parley("conformance", "server", url, *ONLY, "--verbose").stdout
    assert "passed  RPC-1      MUST   A body that is not JSON is rejected with -32700" in whole


def test_a_server_with_a_defect_fails_and_the_report_is_written(parley, defective, tmp_path):
    (tmp_path / "report.html").write_text("of before")
    ran = parley("conformance", "server", defective, *ONLY, "--report", "report.html")
    assert ran.status == 1
    assert "the method NoSuchMethod was answered with -32600, not with -32601" in ran.stdout
    assert "</html>" in (tmp_path / "report.html").read_text()
    ran = parley("conformance", "server", defective, *ONLY, "-o", "json")
    assert ran.status == 1
    assert ran.document["conforms"] is False
    ran = parley("conformance", "server", defective, *ONLY, "--skip", "RPC-3")
    assert ran.status == 0


def test_strictness_counts_what_should_be(parley, url):
    with running(house.asgi(agent, drain=0.0, middleware=[DEFECTS["RPC-7"]])) as address:
        assert parley("conformance", "server", address, *ONLY).status == 0
        assert parley("conformance", "server", address, *ONLY, "--strict").status == 1


def test_a_client_is_run(parley, tmp_path):
    command = f"{sys.executable} -m parley send -a {{url}} {{text}}"
    ran = parley(
        *("conformance", "client", "--run", command, "--only", "CL-TASK-1"),
        *("--only", "CL-STREAM-1", "--report", "report.json"),
    )
    assert ran.status == 0, ran
    assert "conforms: 1 passed, 0 failed (0 MUST), 1 skipped" in ran.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["kind"] == "client"
    assert report["subject"] == command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("server", "http://127.0.0.1:1", "--report", "r.pdf"), "r.pdf ends in none of .txt"),
        (("server", "http://127.0.0.1:1", "--binding", "soap"), "choose from JSONRPC"),
        (("client", "--run", "my-client"), "has no {url}"),
        (("client", "--protocol-version", "2.0"), "choose from 1.0, 0.3"),
    ],
)
def test_what_cannot_be_is_wrong_usage(parley, words, message):
    ran = parley("conformance", *words)
    assert ran.status == 2
    assert message in ran.stderr


def test_no_agent_is_out_of_reach(parley):
    ran = parley("conformance", "server", "http://127.0.0.1:1")
    assert ran.status == 3
    assert "cannot connect to http://127.0.0.1:1" in ran.stderr


def test_the_agent_is_named_as_for_every_command(parley, url, tmp_path):
    card = tmp_path / "card.json"
    card.write_text(parley("card", "get", url, "-o", "json").stdout)
    for words in ((url,), ("-a", url), (url.removeprefix("http://"),), ("-a", str(card))):
        ran = parley("conformance", "server", *words, *ONLY)
        assert ran.status == 0, ran
        assert "JSONRPC 1.0: 11 passed" in ran.stdout
    # A card that was given and not fetched is not asked how it was sent.
    assert (
        "the card was given as a document, not fetched"
        in parley("conformance", "server", str(card), *ONLY, "--verbose").stdout
    )


def test_the_agent_gets_the_credentials_of_every_command(parley, monkeypatch):
    heard = []

    def listening(app):
        async def heeding(scope, receive, send):
            heard.append(dict(scope.get("headers", ())).get(b"authorization"))
            await app(scope, receive, send)

        return heeding

    monkeypatch.setenv("A2ACLI_BEARER", "token-of-ada")
    with running(house.asgi(agent, drain=0.0, middleware=[listening])) as address:
        assert parley("conformance", "server", address, *ONLY).status == 0
    assert b"Bearer token-of-ada" in heard
    assert heard[0] != b"Bearer token-of-ada"  # nobody asks for it before the card is read
