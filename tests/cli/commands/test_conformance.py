"""``parley conformance``: its output, its files, and its exit status."""

from __future__ import annotations

import json
import sys

import pytest

import parley as house
from tests.cli.commands.test_catalog import running
from tests.testing.conformance.tried import agent


@pytest.fixture(scope="module")
def url():
    with running(house.asgi(agent, drain=0.0)) as address:
        yield address


ONLY = ("--protocol-version", "1.0", "--binding", "jsonrpc", "--only", "RPC", "--only", "CARD")


@pytest.mark.slow
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
    assert heard[0] != b"Bearer token-of-ada"  # the first request fetches the card
