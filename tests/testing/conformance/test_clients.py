"""Clients tested against the specification: Parley's own, and clients with a defect."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

import parley
from parley.client.bindings.http import HttpTransport
from parley.client.retry import Retry
from parley.conformance.client_run import (
    Assignment,
    ClientOutcome,
    CommandDriver,
    run_client,
    watch_client,
)
from parley.conformance.client_table import SCENARIOS

pytestmark = pytest.mark.anyio
RETRY = Retry(calls=2, streams=4, first=0.001, limit=0.01)


async def ours(assignment: Assignment) -> ClientOutcome:
    """Perform the assignment with Parley's client."""
    said: list[str] = []
    try:
        async with parley.connect(assignment.url, retries=RETRY) as agent:
            match assignment.action:
                case "send":
                    said.append((await agent.send(assignment.text)).text)
                case "stream":
                    async for event in agent.stream(assignment.text):
                        said.append(event.text)  # noqa: PERF401
                case "answer":
                    task = await agent.send(assignment.text)
                    said.append((await agent.send("Blue", task_id=task.id)).text)
                case "cancel":
                    task = await agent.send(assignment.text, return_immediately=True)
                    await agent.cancel(task.id)
    except Exception as error:
        return ClientOutcome(succeeded=False, output=str(error))
    return ClientOutcome(succeeded=True, output="".join(said))


@pytest.mark.slow
async def test_our_own_client_conforms() -> None:
    report = await run_client(ours)
    assert [
        f"{v.requirement.id}: {v.outcome} {v.reason}" for v in report.verdicts if v.reason
    ] == []
    assert report.conforms
    assert len(report.verdicts) == len(SCENARIOS) >= 49
    assert {each.where for each in report.verdicts} == {
        "JSONRPC 1.0",
        "HTTP+JSON 1.0",
        "JSONRPC 0.3",
        "HTTP+JSON 0.3",
        "GRPC 0.3",
        "GRPC 1.0",
    }


class OldDefect(NamedTuple):
    """A defect of a 0.3 client, and a part of the expected verdict."""

    said: str
    path: str = "/v1/message:send"
    message: Mapping[str, Any] = {"role": "ROLE_USER", "content": [{"text": "Hello"}]}
    cancels: str = "/v1/tasks/{id}:cancel"


OLD_DEFECTS = {
    "a path of 1.0": ("CL-OLD-3", OldDefect("not at /rest/v1", path="/message:send")),
    "a message of 1.0": (
        "CL-OLD-3",
        OldDefect("belong to 1.0", message={"role": "ROLE_USER", "parts": [{"text": "Hello"}]}),
    ),
    "a role of JSON-RPC": (
        "CL-OLD-3",
        OldDefect("not 'ROLE_USER'", message={"role": "user", "content": [{"text": "Hello"}]}),
    ),
    "parts without a kind": (
        "CL-OLD-3",
        OldDefect("no kind", message={"role": "user", "parts": [{"text": "Hello"}]}),
    ),
    "an error that is taken": ("CL-OLD-5", OldDefect("reported success (exit status 0)")),
    "no task in the answer": ("CL-OLD-6", OldDefect("has taskId None")),
    "cancelled at a path of 1.0": (
        "CL-OLD-7",
        OldDefect("not at /rest/v1", cancels="/tasks/{id}:cancel"),
    ),
    "not over gRPC": ("CL-OLD-8", OldDefect("is HTTP, but the card")),
}


@pytest.mark.parametrize("name", OLD_DEFECTS)
async def test_a_defect_of_a_client_of_0_3_is_found(name: str) -> None:
    id, defect = OLD_DEFECTS[name]

    async def drive(assignment: Assignment) -> ClientOutcome:
        async with HttpTransport() as http:
            card = json.loads(
                (await http.get(f"{assignment.url}/.well-known/agent-card.json", {})).body
            )
            url = card["url"] if "://" in card["url"] else assignment.url
            headers = {"Content-Type": "application/json"}
            for number in range(2 if assignment.action == "answer" else 1):
                message = {"messageId": f"m{number}", **defect.message}
                body = json.dumps({"message": message}).encode()
                reply = await http.send("POST", url + defect.path, headers, body)
            if assignment.action == "cancel":
                path = defect.cancels.format(id=json.loads(reply.body)["task"]["id"])
                await http.send("POST", url + path, headers, b"{}")
            return ClientOutcome(succeeded=True, output=reply.body.decode())

    [verdict] = (await run_client(drive, only=(id,))).verdicts
    assert verdict.outcome == "failed", verdict
    assert defect.said in verdict.reason


def naive(**wrong: Any) -> Callable[[Assignment], Awaitable[ClientOutcome]]:
    """Return a naive client with a given defect."""

    async def drive(assignment: Assignment) -> ClientOutcome:
        async with HttpTransport() as http:
            card = (await http.get(f"{assignment.url}/.well-known/agent-card.json", {})).body
            interface = json.loads(card)["supportedInterfaces"][0]
            message: dict[str, Any] = {
                "messageId": wrong.get("id") or uuid4().hex,
                "role": wrong.get("role", "ROLE_USER"),
                "parts": [{"text": assignment.text}],
            }
            message |= wrong.get("members", {})
            method = wrong.get("method", "SendMessage")
            call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
            call |= wrong.get("call", {})
            headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
            headers |= wrong.get("headers", {})
            output = b""
            for _ in range(wrong.get("times", 1)):
                url = wrong.get("path", "") and assignment.url + wrong["path"]
                body = json.dumps(call).encode()
                reply = await http.send("POST", url or interface["url"], headers, body)
                output += reply.body
            return ClientOutcome(succeeded=True, output=output.decode())

    return drive


DEFECTS: dict[str, dict[str, Any]] = {
    "CL-CARD-1": {"path": "/"},
    "CL-CARD-3": {},  # it takes the first interface, whatever that is
    "CL-MSG-1": {"role": "user"},
    "CL-MSG-2": {"members": {"context_id": "c"}},
    "CL-MSG-3": {"id": "always-the-same"},
    "CL-RPC-1": {"call": {"id": None}},
    "CL-RPC-2": {},  # it ignores the id
    "CL-VER-1": {"headers": {"A2A-Version": ""}},
    "CL-ERR-1": {"times": 3},
    "CL-ERR-4": {"times": 2},
    "CL-STREAM-3": {"method": "SendStreamingMessage"},
    "CL-TENANT-1": {},
    "CL-TURN-1": {"times": 2},
    "CL-TASK-2": {},
}


@pytest.mark.parametrize("id", DEFECTS)
async def test_a_planted_defect_is_found_by_its_scenario(id: str) -> None:
    async def drive(assignment: Assignment) -> ClientOutcome:
        try:
            return await naive(**DEFECTS[id])(assignment)
        except Exception as error:
            return ClientOutcome(succeeded=False, output=str(error))

    report = await run_client(drive, only=(id,), skip=(f"{id}0",))
    [found] = report.verdicts
    assert found.outcome == "failed", found
    assert found.reason


@pytest.mark.slow
async def test_a_command_is_run_for_each_scenario(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(
        "import json, sys, urllib.request\n"
        "url, text = sys.argv[1:3]\n"
        "card = json.load(urllib.request.urlopen(url + '/.well-known/agent-card.json'))\n"
        "message = {'messageId': 'm', 'role': 'ROLE_USER', 'parts': [{'text': text}]}\n"
        "call = {'jsonrpc': '2.0', 'id': 1, 'method': 'SendMessage',\n"
        "        'params': {'message': message}}\n"
        "asking = urllib.request.Request(card['supportedInterfaces'][0]['url'],\n"
        "    json.dumps(call).encode(), {'Content-Type': 'application/json'})\n"
        "answer = json.load(urllib.request.urlopen(asking))\n"
        "print(answer['result'])\n"
    )
    words = shlex.join([sys.executable, str(script)]) + " {url} {text}"
    driver = CommandDriver(words, patience=30)
    only = ("CL-TASK-1", "CL-VER-1", "CL-ERR-1", "CL-STREAM-1")
    report = await run_client(driver, subject=words, only=only)
    found = {each.requirement.id: each for each in report.verdicts}
    assert {id: each.outcome for id, each in found.items()} == {
        "CL-TASK-1": "passed",
        "CL-VER-1": "failed",
        "CL-ERR-1": "passed",
        "CL-STREAM-1": "skipped",
    }
    assert "SendMessage has A2A-Version ''" in found["CL-VER-1"].reason
    assert "no {action}" in found["CL-STREAM-1"].reason
    with pytest.raises(ValueError, match=r"has no \{url\}"):
        CommandDriver("my-client", patience=1)


@pytest.mark.slow
async def test_a_client_that_does_not_end_or_start_is_reported() -> None:
    async def hangs(assignment: Assignment) -> ClientOutcome:
        raise TimeoutError

    [verdict] = (await run_client(hangs, only=("CL-MSG-4",), patience=3)).verdicts
    assert (verdict.outcome, verdict.reason) == ("failed", "the client was not done within 3 s")
    missing = CommandDriver("/nowhere/client {url}", patience=1)
    report = await run_client(missing, only=("CL-MSG-4",))
    assert "did not start" in report.verdicts[0].reason
    assert not report.conforms


async def test_a_client_that_somebody_else_runs_is_watched() -> None:
    async def ready(pairs: list[Any]) -> None:
        scenario, visit = pairs[0]
        assignment = Assignment(
            url=visit.url, action=scenario.action, text="Hello", scenario=scenario.requirement.id
        )
        await ours(assignment)

    report = await watch_client(ready, only=("CL-CARD-1", "CL-CARD-2"))
    first, second = report.verdicts
    assert first.outcome == "passed"
    assert second.outcome == "skipped"
    assert second.reason.startswith("the scenario was not played; it is: send 'Hello'")


def test_every_scenario_has_an_id_of_its_own_and_a_link() -> None:
    names = [each.requirement.id for each in SCENARIOS]
    assert len(set(names)) == len(names)
    assert all(each.requirement.link.startswith("https://") for each in SCENARIOS)
