"""Parts, data and artifacts arrive unchanged."""

from __future__ import annotations

import base64
import json
import logging
import struct
from typing import Any

import pytest

import parley
from parley import Agent, Artifact, Turn
from parley.model.errors import InvalidAgentResponseError
from parley.model.tasks import TaskArtifactUpdateEvent
from parley.store.fold import Fold, IllegalEvent
from parley.wire import versions
from tests.contract.choices.conftest import only, placed
from tests.contract.choices.told import state_of
from tests.contract.choices.wire import Wire
from tests.kit.http import ask, post
from tests.kit.scripted_server import Exchange, card, scripted

pytestmark = pytest.mark.anyio

JSONS = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3")]
FILE = b"\x89PNG\r\n\x00\xff"


# -- rule 6 -----------------------------------------------------------------------------------


async def test_rule_06_a_chunk_after_the_last_is_an_error_that_our_own_agent_hears_of():
    """A write after the last chunk raises an error in the agent and sends no chunk."""
    heard: list[str] = []
    agent = Agent("Appender")

    @agent.skill(replies="task")
    async def append(turn: Turn) -> None:
        stream = turn.stream("late")
        async with stream as out:
            await out.write("all of it")
        try:
            await stream.write("too late")
        except RuntimeError as error:
            heard.append(str(error))

    async with placed(parley.asgi(agent, drain=0.0)) as place:
        task = await Wire(place, "JSONRPC", "1.0").task("go")
    assert "has its last chunk" in heard[0]
    assert [part["text"] for part in task["artifacts"][0]["parts"]] == ["all of it"]


def artifact(text: str, **more: Any) -> dict[str, Any]:
    """An update with one chunk of the artifact."""
    made = {"artifactId": "a", "parts": [{"text": text}], **more.pop("artifact", {})}
    return {"artifactUpdate": {"taskId": "t", "contextId": "c", "artifact": made, **more}}


def status(state: str) -> dict[str, Any]:
    update = {"taskId": "t", "contextId": "c", "status": {"state": f"TASK_STATE_{state}"}}
    return {"statusUpdate": update}


def undelivered(*events: Any) -> Any:
    """An agent that begins a task and sends these updates."""

    async def agent(exchange: Exchange) -> None:
        await exchange.open_stream()
        task = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
        for event in ({"task": task}, *events):
            await exchange.chunk(exchange.frame(event))
        await exchange.end_stream()

    return agent


async def heard(*events: Any) -> list[TaskArtifactUpdateEvent]:
    """The artifact updates that the client yields."""
    async with (
        scripted(undelivered(*events)) as server,
        parley.connect(card(server.url), retries=0) as remote,
    ):
        told = [event async for event in remote.stream("hello")]
    return [event for event in told if isinstance(event, TaskArtifactUpdateEvent)]


async def test_rule_06_the_client_takes_a_chunk_of_what_was_never_begun_and_warns(caplog):
    with caplog.at_level(logging.WARNING, "parley"):
        (event,) = await heard(artifact("from nowhere", append=True), status("COMPLETED"))
    assert event.artifact.parts[0].text == "from nowhere"
    assert "never begun" in caplog.text


async def test_rule_06_the_client_refuses_a_chunk_after_the_last():
    with pytest.raises(InvalidAgentResponseError, match="last chunk"):
        await heard(artifact("all", lastChunk=True), artifact("more", append=True))


def folded(*events: Any, strict: bool = False) -> Artifact:
    """The artifact of a task after these updates from the wire."""
    codec = versions.dialect("1.0").http_json
    task = {"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}}
    fold = Fold(strict=strict)
    for each in (task, *events):
        fold.apply(codec.read_event(json.dumps(each).encode()))
    (made,) = fold.task.artifacts
    return made


def test_rule_06_a_chunk_adds_parts_and_metadata_and_changes_no_name():
    first = artifact("one ", artifact={"name": "first", "metadata": {"a": 1}})
    second = artifact("two", artifact={"name": "other", "metadata": {"b": 2}}, append=True)
    made = folded(first, second)
    assert [part.text for part in made.parts] == ["one ", "two"]
    assert (made.name, made.metadata) == ("first", {"a": 1, "b": 2})


def test_rule_06_a_chunk_of_what_was_never_begun_begins_it_but_not_in_our_own_log():
    late = artifact("from nowhere", append=True)
    assert folded(late).parts[0].text == "from nowhere"
    with pytest.raises(IllegalEvent, match="append=false"):
        folded(late, strict=True)


# -- rule 28 ----------------------------------------------------------------------------------

NUMBERS = '{"whole":9007199254740993,"float":1.0,"small":-3,"half":2.5,"none":null,"in":[null,1]}'


@only(*JSONS, ("HTTP+JSON", "0.3"))
async def test_rule_28_numbers_in_data_stay_what_they_are_and_nulls_stay(wire):
    said = [{"text": "say it"}, {"data": json.loads(NUMBERS)}]
    answer = await wire.send(said)
    assert NUMBERS.encode() in answer.body.replace(b" ", b"")


@only(*JSONS, ("HTTP+JSON", "0.3"))
async def test_rule_28_an_integer_may_be_of_any_size_and_is_stored_as_it_is(wire):
    large = "123456789012345678901234567890"
    task = await wire.task([{"text": "work please"}, {"data": {"n": int(large)}}])
    answer = await wire.ask("GetTask", task=task["id"])
    assert f'"n":{large}'.encode() in answer.body.replace(b" ", b"")


@only(("GRPC", "1.0"), ("GRPC", "0.3"))
async def test_rule_28_where_numbers_are_doubles_nulls_and_small_numbers_stay(wire):
    data = {"small": -3, "half": 2.5, "none": None, "in": [None, 1]}
    answer = await wire.send([{"text": "say it"}, {"data": data}])
    part = (answer.result.get("parts") or answer.result["content"])[1]
    assert (part["data"]["data"] if wire.is_proto else part["data"]) == data


# -- rule 32 ----------------------------------------------------------------------------------


@only(("HTTP+JSON", "0.3"), ("GRPC", "0.3"))
@pytest.mark.parametrize("sent", [FILE, base64.b64encode(FILE)])
@pytest.mark.parametrize("of_python", [False, True])
async def test_rule_32_the_bytes_of_a_file_are_read_raw_and_as_base64(wire, sent, of_python):
    """Responses carry the raw bytes of the proto, except for clients known to expect base64."""
    wire.library = "" if of_python else "some-library/1.0"
    said = [{"text": "say it"}, {"raw": base64.b64encode(sent).decode(), "mediaType": "image/png"}]
    answer = await wire.send(said)
    file = answer.result["content"][1]["file"]
    told = base64.b64encode(FILE) if of_python else FILE
    assert base64.b64decode(file["fileWithBytes"]) == told
    assert file["mimeType"] == "image/png"


# -- rule 35 ----------------------------------------------------------------------------------


@only(*JSONS)
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("NaN", "INVALID_JSON"),
        ("Infinity", "INVALID_JSON"),
        ("1e400", "INVALID_PARAMS"),
        ("-1e400", "INVALID_PARAMS"),
    ],
)
async def test_rule_35_a_number_that_json_does_not_have_is_refused_at_the_edge(
    wire, number, reason
):
    members = wire.sending([{"text": "say it"}, {"data": {"n": "@"}}])
    body = json.dumps(members).replace('"@"', number).encode()
    if wire.binding == "JSONRPC":
        method = b"message/send" if wire.is_old else b"SendMessage"
        body = b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method, body)
        response = await post(wire.place.url, body, wire.headers)
        refused = response.error["data"]
    else:
        headers = {**wire.headers, "Content-Type": "application/json"}
        response = await ask(wire.place.url, "POST", "/message:send", body, headers)
        assert response.status == 400
        refused = response.json["error"]["details"]
    assert refused[0]["reason"] == reason
    if reason == "INVALID_PARAMS":
        (violation,) = refused[1]["fieldViolations"]
        assert violation["field"].endswith("message.parts[1].data.n")


@only(("GRPC", "1.0"), ("GRPC", "0.3"))
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
async def test_rule_35_protobuf_has_such_numbers_and_they_are_refused_too(wire, number):
    path, request, _ = wire.rpc("SendMessage")
    data = wire.packed(request, wire.sending([{"text": "say it"}, {"data": {"n": 4.5}}]))
    assert struct.pack("<d", 4.5) in data
    data = data.replace(struct.pack("<d", 4.5), struct.pack("<d", number))
    refused = await wire.raw_call(path, data, wire.headers)
    assert (refused.status, refused.reason) == ("INVALID_ARGUMENT", "INVALID_PARAMS")
    assert any("data" in field for field in refused.fields)


async def test_rule_35_an_agent_cannot_say_one_and_what_is_stored_can_be_read(way):
    agent = Agent("Numbers")

    @agent.skill(replies="task")
    async def nan(turn: Turn) -> dict[str, float]:
        return {"n": float("nan")}

    async with placed(parley.asgi(agent, drain=0.0)) as place:
        wire = Wire(place, *way)
        task = await wire.task("go")
        assert state_of(task) == "failed"
        assert not task.get("artifacts")
        if not wire.is_old:
            listed = await wire.ask("ListTasks")
            assert [each["id"] for each in listed.result["tasks"]] == [task["id"]]
