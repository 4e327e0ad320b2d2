"""Servers tried against the specification: our own, and those with a defect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import parley
from parley import Agent, CardDetails
from parley.conformance.report import FORMATS
from parley.conformance.server_run import CHECKS, CardNotRead, run_server
from parley.conformance.verdicts import Verdict
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.testing.conformance.tried import DEFECTS, TEXTS, agent

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(*middleware: Any, grpc: bool = False) -> AsyncIterator[str]:
    app = parley.asgi(agent, drain=0.0, middleware=middleware)
    async with serving(app, grpc=GrpcOptions(port=0) if grpc else None) as url:
        yield url


def ids(verdicts: Sequence[Verdict], outcome: str) -> set[str]:
    return {each.requirement.id for each in verdicts if each.outcome == outcome}


async def test_our_own_server_conforms_in_every_binding_and_version() -> None:
    seen: list[Verdict] = []
    async with served(grpc=True) as url:
        report = await run_server(url, texts=TEXTS, on_verdict=seen.append)
        async with parley.connect(url) as remote:
            left = [task async for task in remote.tasks() if not task.state.is_terminal]
    assert left == []  # what the checks began is over
    assert [f"{v.where} {v.requirement.id}: {v.reason}" for v in report.failed] == []
    assert report.conforms
    assert tuple(seen) == report.verdicts
    bindings = ("JSONRPC", "HTTP+JSON", "GRPC")
    places = {f"{binding} {version}" for binding in bindings for version in ("1.0", "0.3")}
    assert {each.where for each in report.verdicts} == places | {"card"}
    skipped = {"STREAM-11", "PUSH-1", "EXT-2", "EXT-3"}  # the card declares otherwise
    assert ids(report.verdicts, "passed") == {c.requirement.id for c in CHECKS} - skipped | {
        "IFACE-1"
    }


@pytest.mark.parametrize("id", DEFECTS)
async def test_a_planted_defect_is_found_by_its_check(id: str) -> None:
    async with served(DEFECTS[id]) as url:
        report = await run_server(
            url, texts=TEXTS, only=(id,), bindings=("JSONRPC",), protocol_versions=("1.0",)
        )
    [found] = [each for each in report.verdicts if each.requirement.id == id]
    assert found.outcome == "failed", found
    assert found.reason
    assert report.conforms == (found.requirement.level != "MUST")


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
    assert "--task names a text" in reasons["TASK-1"]
    assert "--ask names a text" in reasons["MSG-14"]
    assert "capabilities.streaming" in reasons["STREAM-1"]
    assert {"STREAM-11", "PUSH-1"} <= ids(report.verdicts, "passed")


async def test_checks_are_chosen_by_how_their_ids_begin() -> None:
    async with served() as url:
        report = await run_server(
            url, texts=TEXTS, only=("list", "TASK-1"), skip=("LIST-9", "TASK-10", "TASK-11")
        )
    numbers = range(1, 9)
    assert {v.requirement.id for v in report.verdicts} == {f"LIST-{n}" for n in numbers} | {
        "TASK-1"
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
            await run_server(url, headers={"Authorization": "Bearer s"}, only=("RPC", "IFACE"))
        assert heard
        assert not any("Bearer" in each for each in heard)


async def test_without_a_card_there_is_nothing_to_try() -> None:
    for url, words in (("http://127.0.0.1:1", "no agent at"), ("agent", "not an address")):
        with pytest.raises(CardNotRead, match=words):
            await run_server(url)


async def test_a_report_is_published_in_four_forms() -> None:
    async with served(DEFECTS["RPC-3"]) as url:
        report = await run_server(
            url, only=("RPC-3", "RPC-1"), bindings=("JSONRPC",), protocol_versions=("1.0",)
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
