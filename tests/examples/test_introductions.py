"""The exchanges in A2A's introductory documents, copied as printed.

None of the documents names a version, and some mix the forms of 0.3 and 1.0. The examples for these
documents are served with ``--missing-version 1.0``.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import parley
from parley import Settings
from tests.examples.conftest import EXAMPLES
from tests.kit.http import Response, ask, data_of
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio

EXAMPLES_OF_DOCUMENTS = ("flight_booking", "magic_8_ball", "sailboat", "streaming_report")
A2A_JSON = {"Content-Type": "application/a2a+json"}


def served(example, name: str) -> Any:
    app = parley.asgi(
        example(name).agent, store="memory:", settings=Settings(missing_version="1.0")
    )
    return under_uvicorn(app)


async def post(url: str, path: str, body: Any, headers: dict[str, str]) -> Response:
    return await ask(url, "POST", path, json.dumps(body).encode(), headers)


async def send(url: str, message: dict[str, Any]) -> dict[str, Any]:
    """Send a message by JSON-RPC, and return the result."""
    body = {
        "jsonrpc": "2.0",
        "id": "req-1",
        "method": "SendMessage",
        "params": {"message": message},
    }
    answer = await post(url, "/", body, {"Content-Type": "application/json"})
    assert answer.headers["a2a-version"] == "1.0"
    return answer.json["result"]


@pytest.mark.parametrize("name", EXAMPLES_OF_DOCUMENTS)
def test_the_command_of_an_example_serves_it_for_its_document(name: str) -> None:
    told = (EXAMPLES / f"{name}.py").read_text("utf-8")
    assert f"parley serve examples/{name}.py --missing-version 1.0\n" in told


async def test_the_sailboat_of_the_life_of_a_task_is_drawn_and_painted_red(example) -> None:
    async with served(example, "sailboat") as url:
        asked = {"parts": [{"text": "Generate an image of a sailboat on the ocean."}]}
        first = (await send(url, {"role": "user", "messageId": "msg-user-001", **asked}))["task"]
        assert first["status"]["state"] == "TASK_STATE_COMPLETED"
        message = {
            "role": "user",
            "messageId": "msg-user-002",
            "contextId": first["contextId"],
            "referenceTaskIds": [first["id"]],
            "parts": [{"text": "Please modify the sailboat to be red."}],
        }
        second = (await send(url, message))["task"]
    assert second["id"] != first["id"]
    assert second["contextId"] == first["contextId"]
    artifacts = [task["artifacts"][0] for task in (first, second)]
    assert artifacts[0]["name"] == artifacts[1]["name"]
    assert artifacts[0]["artifactId"] != artifacts[1]["artifactId"]
    assert artifacts[0]["parts"][0]["raw"] != artifacts[1]["parts"][0]["raw"]


async def test_the_magic_ball_answers_the_request_with_an_extension(example) -> None:
    uri = "https://example.com/ext/konami-code/v1"
    body = {
        "jsonrpc": "2.0",
        "method": "SendMessage",
        "id": "1",
        "params": {
            "message": {
                "messageId": "1",
                "role": "ROLE_USER",
                "parts": [{"text": "Oh magic 8-ball, will it rain today?"}],
            },
            "metadata": {f"{uri}/code": "motherlode"},
        },
    }
    headers = {"Content-Type": "application/json", "A2A-Extensions": uri}
    async with served(example, "magic_8_ball") as url:
        answer = await post(url, "/", body, headers)
    assert uri in answer.headers["a2a-extensions"]
    assert answer.json["result"]["message"]["role"] == "ROLE_AGENT"


async def test_the_report_of_the_specification_is_streamed(example) -> None:
    asked = [{"text": "Write a detailed report on climate change"}]
    message = {"role": "ROLE_USER", "parts": asked, "messageId": "msg-uuid"}
    async with served(example, "streaming_report") as url:
        answer = await post(url, "/message:stream", {"message": message}, A2A_JSON)
    frames = answer.body.decode().split("\n\n")
    events = [data_of(frame) for frame in frames if "data: " in frame]
    assert "task" in events[0]
    assert any("artifactUpdate" in event for event in events)
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_the_flight_of_the_specification_is_booked_in_several_turns(example) -> None:
    async with served(example, "flight_booking") as url:

        async def say(text: str, id: str, **more: str) -> dict[str, Any]:
            message = {"role": "ROLE_USER", "parts": [{"text": text}], "messageId": id, **more}
            answer = await post(url, "/message:send", {"message": message}, A2A_JSON)
            return answer.json["task"]

        task = await say("Book me a flight", "msg-1")
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        for number, answer in enumerate(("From San Francisco to New York", "2027-03-14"), 2):
            task = await say(answer, f"msg-{number}", taskId=task["id"])
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    booked = task["artifacts"][0]["parts"][0]["text"]
    assert "San Francisco to New York on 2027-03-14" in booked


MIXED = {
    "role and kind": {"role": "user", "parts": [{"kind": "text", "text": "Hello"}]},
    "kind alone": {"role": "ROLE_USER", "parts": [{"kind": "text", "text": "Hello"}]},
    "type": {"role": "user", "parts": [{"type": "text", "text": "Hello"}]},
    "a file": {
        "role": "user",
        "parts": [
            {"kind": "text", "text": "Hello"},
            {"kind": "file", "file": {"bytes": "aGk=", "name": "a.txt", "mimeType": "text/plain"}},
        ],
    },
    "a file of the annex": {
        "role": "ROLE_USER",
        "parts": [
            {"text": "Hello"},
            {"kind": "file", "file": {"fileWithBytes": "aGk=", "name": "a.txt"}},
        ],
    },
    "a file of 1.0": {
        "role": "user",
        "parts": [{"text": "Hello"}, {"raw": "aGk=", "filename": "a.txt"}],
    },
    "data": {"role": "user", "parts": [{"text": "Hello"}, {"kind": "data", "data": {"n": 1}}]},
}


@pytest.mark.parametrize("path", ["/", "/message:send"])
@pytest.mark.parametrize("what", MIXED)
async def test_forms_of_0_3_are_read_in_a_1_0_call_if_that_is_chosen(what: str, path: str) -> None:
    agent = parley.Agent("Echo", input_modes=("text/plain", "application/json"))

    @agent.skill
    def echo(turn: parley.Turn) -> str:
        names = [part.filename for part in turn.message.parts if part.filename]
        return f"{turn.text} {' '.join(names)}".strip()

    params = {"message": {"messageId": "m-1", **MIXED[what]}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    expected = "Hello a.txt" if "file" in what else "Hello"
    answers = []
    for version in ("1.0", "0.3"):
        settings = Settings(missing_version=version)  # type: ignore[arg-type]
        async with under_uvicorn(parley.asgi(agent, store="memory:", settings=settings)) as url:
            answers.append(await post(url, path, body if path == "/" else params, headers))
    chosen = answers[0].json
    message = chosen.get("result", chosen)["message"]
    assert message["parts"][0]["text"] == expected
    assert (b"error" in answers[1].body) == (what != "kind alone")  # which 1.0 ignores


@pytest.mark.parametrize("blocking", [True, False])
async def test_blocking_of_0_3_counts_in_a_1_0_call_if_that_is_chosen(blocking: bool) -> None:
    agent = parley.Agent("Slow")

    @agent.skill(replies="task")
    async def slow(turn: parley.Turn) -> str:
        if not blocking:
            await turn.messages().__anext__()
        return "done"

    settings = Settings(missing_version="1.0")
    async with under_uvicorn(parley.asgi(agent, store="memory:", settings=settings)) as url:
        body = {
            "message": {"role": "ROLE_USER", "messageId": "m", "parts": [{"text": "Hello"}]},
            "configuration": {"blocking": blocking},
        }
        task = (await post(url, "/message:send", body, A2A_JSON)).json["task"]
        is_done = task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert is_done == blocking
        await ask(url, "POST", f"/tasks/{task['id']}:cancel", b"", A2A_JSON)


def test_no_document_of_an_example_shows_another_command() -> None:
    for page in (EXAMPLES.parent / "docs" / "guides" / "examples").glob("*.md"):
        for line in re.findall(r"parley serve examples/(\w+)\.py[^\n]*", page.read_text("utf-8")):
            if line in EXAMPLES_OF_DOCUMENTS and page.stem != "planner":
                assert f"examples/{line}.py --missing-version 1.0" in page.read_text("utf-8")
