"""Version 0.3 over JSON-RPC, with the messages of its specification, against a complete agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import parley
from parley import Agent, Turn
from parley.server.run import serving
from tests.kit.http import ask, connection, data_of

pytestmark = pytest.mark.anyio

PLAIN = {"Content-Type": "application/json"}

agent = Agent("Clock", description="Tells the time")
gate = asyncio.Event()


@agent.skill(default=True)
async def tell(turn: Turn) -> str:
    """Tells the time."""
    return "It is noon."


@agent.skill
async def count(turn: Turn) -> AsyncIterator[str]:
    """Counts."""
    for n in range(2):
        yield f"{n} "


@agent.skill
async def wait(turn: Turn) -> str:
    """Waits."""
    await turn.working("waiting")
    await gate.wait()
    return "done"


@agent.skill
async def inquire(turn: Turn) -> str:
    """Asks back."""
    return (await turn.ask("For whom?")).text


@pytest.fixture(scope="module")
async def clock() -> AsyncIterator[str]:
    async with serving(parley.asgi(agent)) as url:
        yield url


def message(skill: str = "tell", **members: Any) -> dict[str, Any]:
    said = {
        "role": "user",
        "parts": [{"kind": "text", "text": "What time is it?"}],
        "messageId": "9229e770-767c-417b-a0b0-f0741243c589",
        "metadata": {"skill": skill},
    }
    return {**said, **members}


async def rpc(url: str, method: str, params: Any) -> Any:
    """Return the response to a call without any headers of the protocol."""
    body = {"jsonrpc": "2.0", "id": "req-1", "method": method, "params": params}
    response = await ask(url, "POST", "/", json.dumps(body).encode(), PLAIN)
    assert response.status == 200
    assert response.headers["a2a-version"] == "0.3"
    answer = response.json
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", "req-1")
    return answer


async def result(url: str, method: str, params: Any) -> Any:
    answer = await rpc(url, method, params)
    assert "result" in answer, answer
    return answer["result"]


async def events(url: str, method: str, params: Any) -> list[Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with connection(url) as http:
        await http.request("POST", "/", json.dumps(body).encode(), PLAIN)
        status, headers = await http.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        return [data_of(frame)["result"] async for frame in http.frames() if "data: " in frame]


async def test_the_message_that_texts_print_is_answered_byte_for_byte(clock):
    body = b"""{
      "jsonrpc": "2.0",
      "id": 1,
      "method": "message/send",
      "params": {
        "message": {
          "role": "user",
          "parts": [{"kind": "text", "text": "tell me a joke"}],
          "messageId": "9229e770-767c-417b-a0b0-f0741243c589"
        },
        "configuration": {"blocking": true},
        "metadata": {}
      }
    }"""
    response = await ask(clock, "POST", "/", body, PLAIN)
    assert response.status == 200
    answer = response.json["result"]
    told = (
        '{"jsonrpc":"2.0","id":1,"result":{"kind":"message","messageId":"%s","contextId":"%s",'
        '"role":"agent","parts":[{"kind":"text","text":"It is noon."}]}}'
    )
    assert response.body.decode() == told % (answer["messageId"], answer["contextId"])


async def test_a_task_of_0_3_is_answered_got_and_canceled(clock):
    params = {"message": message("wait"), "configuration": {"blocking": False}}
    task = await result(clock, "message/send", params)
    assert task["kind"] == "task"
    assert task["status"]["state"] in ("submitted", "working")
    got = await result(clock, "tasks/get", {"id": task["id"], "historyLength": 1})
    assert got["kind"] == "task"
    assert got["history"][0]["kind"] == "message"
    assert (await result(clock, "tasks/get", {"id": task["id"], "historyLength": 0}))[
        "history"
    ] == []
    listed = await result(clock, "tasks/list", {"contextId": task["contextId"]})
    assert [each["kind"] for each in listed["tasks"]] == ["task"]
    assert (listed["nextPageToken"], listed["totalSize"]) == ("", 1)
    canceled = await result(clock, "tasks/cancel", {"id": task["id"]})
    assert canceled["status"]["state"] == "canceled"


@pytest.mark.parametrize("method", ["message/stream", "tasks/sendSubscribe"])
async def test_a_stream_ends_with_its_only_final_update(clock, method):
    told = await events(clock, method, {"message": message("count")})
    assert told[0]["kind"] == "task"
    assert {event["kind"] for event in told} == {"task", "artifact-update", "status-update"}
    updates = [event for event in told if event["kind"] == "status-update"]
    assert [event["final"] for event in updates][-1] is True
    assert not any(event["final"] for event in updates[:-1])
    assert told[-1] == updates[-1]
    assert told[-1]["status"]["state"] == "completed"


async def test_a_stream_ends_finally_where_the_agent_asks(clock):
    told = await events(clock, "message/stream", {"message": message("inquire")})
    assert told[-1]["status"]["state"] == "input-required"
    assert told[-1]["final"] is True


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("message/send", {}, -32602),
        ("message/send", {"message": message(parts=[{"kind": "song"}])}, -32602),
        ("message/send", {"message": message(taskId="no-such-task")}, -32001),
        ("tasks/get", {"id": "no-such-task"}, -32001),
        ("tasks/get", {"id": "x", "historyLength": -1}, -32602),
        ("tasks/cancel", {"id": "no-such-task"}, -32001),
        ("tasks/resubscribe", {"id": "no-such-task"}, -32001),
        ("agent/getAuthenticatedExtendedCard", {}, -32004),
        ("tasks/fold", {}, -32601),
    ],
)
async def test_refusals_have_the_codes_of_0_3(clock, method, params, code):
    error = (await rpc(clock, method, params))["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["data"][0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"


async def test_what_is_wrong_is_named_in_the_words_of_0_3(clock):
    params = {"message": message(), "configuration": {"pushNotificationConfig": {"id": "1"}}}
    error = (await rpc(clock, "message/send", params))["error"]
    fields = [violation["field"] for violation in error["data"][1]["fieldViolations"]]
    assert fields == ["configuration.pushNotificationConfig.url"]


async def test_a_method_of_the_other_version_is_named(clock):
    error = (await rpc(clock, "SendMessage", {}))["error"]
    assert error["code"] == -32009
    assert "A2A-Version: 1.0" in error["message"]
