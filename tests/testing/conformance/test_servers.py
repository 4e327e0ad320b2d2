"""Servers tested against the specification: Parley's own, and servers with a defect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import parley
from parley import Agent, CardDetails
from parley.client.auth.credentials import Credentials
from parley.client.errors import ClientError
from parley.conformance.report import FORMATS
from parley.conformance.server_run import CHECKS, run_server
from parley.conformance.verdicts import Verdict
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.testing.conformance.tried import AGENTS, CARD_OF, CASES, DEFECTS, TEXTS, Defect

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(*middleware: Any, grpc: bool = False, of: str = "agent") -> AsyncIterator[str]:
    app = parley.asgi(**AGENTS[of], drain=0.0, middleware=middleware)
    async with serving(app, grpc=GrpcOptions(port=0) if grpc else None) as url:
        yield url + CARD_OF[of]


def ids(verdicts: Sequence[Verdict], outcome: str) -> set[str]:
    return {each.requirement.id for each in verdicts if each.outcome == outcome}


@pytest.mark.parametrize(
    ("id", "defect"), CASES, ids=[f"{id}-{n}" for n, (id, _) in enumerate(CASES)]
)
async def test_a_planted_defect_is_found_by_its_check(id: str, defect: Defect) -> None:
    on_grpc = id == "CARD-14" or defect.of == "tenant"  # only its interface names the tenant
    async with served(defect, of=defect.of, grpc=on_grpc) as url:
        binding, _, version = defect.place.partition(" ")
        places = {"bindings": (binding,), "protocol_versions": (version,)} if version else {}
        report = await run_server(url, texts=TEXTS, only=(id,), patience=2, **places)
    [found] = [each for each in report.verdicts if each.requirement.id == id]
    assert found.outcome == ("noted" if found.requirement.level == "MAY" else "failed"), found
    assert found.reason
    assert report.conforms == (found.requirement.level != "MUST")


def test_a_defect_is_planted_for_each_check_that_came_from_the_rules_of_the_house() -> None:
    named = {id for id, _ in CASES}
    assert {c.requirement.id for c in CHECKS if c.requirement.level == "MAY"} <= named


async def test_what_an_agent_does_not_do_is_skipped_with_what_would_help() -> None:
    quiet = Agent(name="Quiet", card=CardDetails(streaming=False, push_notifications=False))

    @quiet.skill
    async def answer() -> str:
        """Answers directly."""
        return "Yes"

    async with serving(parley.asgi(quiet, drain=0.0)) as url:
        report = await run_server(url, bindings=("JSONRPC", "GRPC"), protocol_versions=("1.0",))
    assert report.conforms
    assert "GRPC: 0 passed, 0 failed, 1 skipped\n          the card has no such" in report.brief()
    reasons = {each.requirement.id: each.reason for each in report.verdicts if each.reason}
    assert "give --task a text" in reasons["TASK-1"]
    assert "give --ask a text" in reasons["MSG-14"]
    assert "capabilities.streaming" in reasons["STREAM-1"]
    assert {"STREAM-11", "PUSH-1"} <= ids(report.verdicts, "passed")


async def test_checks_are_chosen_by_how_their_ids_begin() -> None:
    async with served() as url:
        report = await run_server(
            url, texts=TEXTS, only=("list", "TASK-2"), skip=("LIST-9", "LIST-1")
        )
    numbers = range(2, 9)
    assert {v.requirement.id for v in report.verdicts} == {f"LIST-{n}" for n in numbers} | {
        "TASK-2"
    }


async def test_credentials_go_to_no_other_origin() -> None:
    heard: list[str] = []

    def listening(app: Any) -> Any:
        async def heeding(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                found = dict(scope["headers"]).get(b"authorization", b"")
                heard.append(f"{scope['path']} {found.decode()}".strip())
            await app(scope, receive, send)

        return heeding

    async with served(listening) as there:

        def leading(app: Any) -> Any:
            async def card(scope: Any, receive: Any, send: Any) -> None:
                interface = {"url": there, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
                members = {"name": "x", "supportedInterfaces": [interface]}
                head = [(b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": 200, "headers": head})
                await send({"type": "http.response.body", "body": json.dumps(members).encode()})

            return card

        async with served(leading) as url:
            credentials = Credentials(headers={"Authorization": "Bearer s"})
            report = await run_server(url, credentials=credentials, only=("RPC", "IFACE"))
            assert not heard
            [skipped] = report.verdicts
            assert "--trust-origin" in skipped.reason
            credentials = Credentials(headers={"Authorization": "Bearer s"}, trust_origins=[there])
            await run_server(url, credentials=credentials, only=("RPC", "IFACE"))
        assert all("Bearer" in each for each in heard)
        assert heard


@pytest.mark.slow
async def test_without_a_card_there_is_nothing_to_try() -> None:
    for url, words in (("http://127.0.0.1:1", "cannot connect to"), ("a b", "neither an address")):
        with pytest.raises(ClientError, match=words):
            await run_server(url)


async def test_a_report_is_published_in_four_forms() -> None:
    async with served(DEFECTS["RPC-3"]) as url:
        report = await run_server(
            url,
            only=("RPC-3", "RPC-1"),
            skip=("RPC-10", "RPC-11"),
            bindings=("JSONRPC",),
            protocol_versions=("1.0",),
        )
    said = {format: report.written(format) for format in FORMATS}
    document = json.loads(said["json"])
    assert [(r["id"], r["outcome"]) for r in document["results"]] == [
        ("RPC-1", "passed"),
        ("RPC-3", "failed"),
    ]
    assert not document["conforms"]
    link = "https://a2a-protocol.org/v1.0.0/specification/#95-error-handling"
    assert document["results"][1]["link"] == link
    for text in said.values():
        assert link in text
        assert "does not conform: 1 passed, 1 failed (1 MUST), 0 skipped" in text
        assert "-32600, not with -32601" in text
    assert "NoSuchMethod" in said["text"]
    assert "| [RPC-3](" in said["markdown"]
    assert "RPC-1" not in report.brief()


def test_every_check_has_an_id_of_its_own_and_a_link() -> None:
    assert len(CHECKS) >= 40
    names = [check.requirement.id for check in CHECKS]
    assert len(set(names)) == len(names)
    for check in CHECKS:
        assert check.requirement.link.startswith("https://a2a-protocol.org/v")
