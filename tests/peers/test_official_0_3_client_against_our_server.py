"""The official SDKs' clients of 0.3 against our server; all traffic is 0.3."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import pytest

from .conftest import Processes
from .counterpart import agent, gate
from .official_caller import WAIT, Official, Refused

pytestmark = pytest.mark.anyio

CLIENTS = [
    (peer, binding, "0.3")
    for peer in ("python-0.3", "js-0.3")
    for binding in ("JSONRPC", "HTTP+JSON", "GRPC")
]
CLIENTS += [("python-0.3", "JSONRPC", "minimal")]


@pytest.fixture(scope="module", params=CLIENTS, ids=" ".join)
async def official(
    request: pytest.FixtureRequest, house: str, official_clients: Processes
) -> Official:
    peer, binding, version = request.param
    return Official(peer, await official_clients(peer), house, binding, version)


def request_of(text: str, configuration: Any = None, **message: Any) -> dict[str, Any]:
    """Return the parameters that send a text."""
    skill, _, _ = text.partition(" ")
    said = {
        "kind": "message",
        "messageId": uuid4().hex,
        "role": "user",
        "parts": [{"kind": "text", "text": text}],
        "metadata": {"skill": skill},
        **message,
    }
    return {"message": said, "configuration": {"blocking": True, **(configuration or {})}}


async def send(official: Official, text: str, configuration: Any = None, **message: Any) -> Any:
    return await official.call("send", request_of(text, configuration, **message))


def text_of(value: Any) -> str:
    return "".join(part.get("text", "") for part in value["parts"])


def said(task: Any) -> str:
    return text_of(task["status"]["message"])


def state(value: Any) -> str:
    return str(value["status"]["state"])


def states(events: list[Any]) -> list[str]:
    return [state(event) for event in events if "status" in event]


def chunks(events: list[Any]) -> str:
    return "".join(text_of(e["artifact"]) for e in events if e["kind"] == "artifact-update")


async def collect(official: Official, text: str, **message: Any) -> list[Any]:
    return [event async for event in official.items("stream", request_of(text, **message))]


async def test_the_card_is_resolved(official: Official) -> None:
    card = await official.call("card") if official.version != "minimal" else None
    if card is None:
        return  # this client, by design, fetches no card
    assert (card["name"], card["version"]) == ("Counterpart", "2.1")
    assert card["protocolVersion"].startswith("0.3")
    assert (card["preferredTransport"], card["url"].rstrip("/")) == ("JSONRPC", official.url)
    assert card["capabilities"]["streaming"] is True
    assert [skill["id"] for skill in card["skills"]] == list(agent.skills)


async def test_a_message_is_answered_with_a_message(official: Official) -> None:
    reply = await send(official, "hello", contextId="c-1")
    assert (reply["kind"], reply["role"], text_of(reply)) == ("message", "agent", "hello yourself")
    assert reply["contextId"] == "c-1"
    [event] = await collect(official, "hello")
    assert (event["kind"], text_of(event)) == ("message", "hello yourself")


async def test_a_message_is_answered_with_a_task_that_has_ended(official: Official) -> None:
    task = await send(official, "two")
    assert (task["kind"], state(task)) == ("task", "completed")
    log, answer = task["artifacts"]
    assert (log["name"], text_of(log)) == ("log", "begun. done.")
    assert answer["parts"][0]["data"]["answer"] == 42
    assert text_of(task["history"][0]) == "two"
    got = await official.call("get", {"id": task["id"]})
    assert (got["status"], got["artifacts"]) == (task["status"], task["artifacts"])


async def test_a_sender_that_does_not_block_is_answered_at_once(official: Official) -> None:
    name = f"wait {uuid4()}"
    task = await send(official, name, {"blocking": False})
    assert state(task) in ("submitted", "working")
    gate(name).set()
    async with asyncio.timeout(WAIT):
        while state(task) != "completed":
            task = await official.call("get", {"id": task["id"]})
    assert text_of(task["artifacts"][0]) == "waited"


async def test_a_task_is_streamed_in_order(official: Official) -> None:
    events = await collect(official, "report")
    assert events[0]["kind"] == "task"
    assert {event["kind"] for event in events[1:]} == {"status-update", "artifact-update"}
    assert [s for s in states(events) if s != "working"] == ["submitted", "completed"]
    assert chunks(events) == "".join(f"chunk {n}. " for n in range(5))
    assert [e.get("final") for e in events if e["kind"] == "status-update"][-1] is True
    assert not any(e.get("final") for e in events[:-1])
    for event in events[1:]:
        assert (event["taskId"], event["contextId"]) == (events[0]["id"], events[0]["contextId"])


async def test_questions_are_answered_in_the_same_task(official: Official) -> None:
    asked = await send(official, "book")
    assert (state(asked), said(asked)) == ("input-required", "From where?")
    again = await send(official, "Rome", taskId=asked["id"], contextId=asked["contextId"])
    assert (again["id"], state(again), said(again)) == (
        asked["id"], "input-required", "To where?",
    )  # fmt: skip
    done = await send(official, "Oslo", taskId=asked["id"])
    assert (state(done), text_of(done["artifacts"][0])) == ("completed", "Rome to Oslo")
    heard = [text_of(message) for message in done["history"]]
    assert heard == ["book", "From where?", "Rome", "To where?", "Oslo"]
    assert {message["role"] for message in done["history"]} == {"user", "agent"}


async def test_a_stream_that_ends_with_a_question_says_that_it_is_final(official: Official) -> None:
    events = await collect(official, "book")
    assert states(events)[-1] == "input-required"
    assert events[-1]["final"] is True
    done = await collect(official, "Rome", taskId=events[0]["id"])
    assert states(done)[-1] == "input-required"


async def test_a_running_task_is_canceled(official: Official) -> None:
    async with aclosing(official.items("stream", request_of(f"wait {uuid4()}"))) as stream:
        task = await anext(stream)
        canceled = await official.call("cancel", {"id": task["id"]})
        assert (canceled["id"], state(canceled)) == (task["id"], "canceled")
        rest = [event async for event in stream]
    assert (states(rest)[-1], rest[-1]["final"]) == ("canceled", True)


async def test_a_running_task_is_subscribed_to_again(official: Official) -> None:
    name = f"report {uuid4()}"
    async with aclosing(official.items("stream", request_of(name))) as first:
        task = await anext(first)
        async with aclosing(official.items("subscribe", {"id": task["id"]})) as second:
            begun = await anext(second)
            assert (begun["kind"], begun["id"]) == ("task", task["id"])
            gate(name).set()
            seen = [event async for event in second]
        rest = [event async for event in first]
    assert states(seen)[-1] == states(rest)[-1] == "completed"
    done = await official.call("get", {"id": task["id"]})
    begun_text = "".join(text_of(artifact) for artifact in begun.get("artifacts", []))
    whole = "".join(text_of(artifact) for artifact in done["artifacts"])
    assert begun_text + chunks(seen) == chunks(rest) == whole


async def test_as_much_history_is_given_as_is_asked_for(official: Official) -> None:
    task = await send(official, "book", {"historyLength": 1})
    assert len(task["history"]) == 1
    await send(official, "Rome", taskId=task["id"])
    got = await official.call("get", {"id": task["id"], "historyLength": 2})
    assert [text_of(message) for message in got["history"]][-1] in ("Rome", "To where?")
    assert len(got["history"]) == 2
    assert len((await official.call("get", {"id": task["id"]}))["history"]) >= 3


async def test_files_and_data_come_back_as_they_were(official: Official) -> None:
    parts = [
        {"kind": "text", "text": "Grüße, 世界"},
        {"kind": "file", "file": {
            "bytes": "iVBORw0KGgo=", "mimeType": "image/png", "name": "dot.png"}},
        {"kind": "file", "file": {"uri": "https://files.example/a.png", "mimeType": "image/png"}},
        {"kind": "data", "data": {"n": 42, "x": 1.5, "list": [1, True], "deep": {"": []}}},
    ]  # fmt: skip
    task = await send(official, "echo", parts=parts)
    [artifact] = task["artifacts"]
    got = [{key: value for key, value in part.items() if value} for part in artifact["parts"]]
    for part in got:
        if "file" in part:
            part["file"] = {key: value for key, value in part["file"].items() if value}
    if official.binding != "JSONRPC":  # the proto of 0.3 has no field for a file name
        del parts[1]["file"]["name"]
        got[1]["file"].pop("name", None)
    assert got == parts


async def test_webhooks_are_kept(official: Official) -> None:
    task = await send(official, "book")
    wanted = {"id": "w-1", "url": "https://hooks.example/x"}
    made = await official.call(
        "create_push", {"taskId": task["id"], "pushNotificationConfig": wanted}
    )
    assert made["taskId"] == task["id"]
    assert {key: made["pushNotificationConfig"][key] for key in wanted} == wanted
    one = {"id": task["id"], "pushNotificationConfigId": "w-1"}
    got = await official.call("get_push", one)
    assert got["pushNotificationConfig"]["url"] == wanted["url"]
    if official.peer == "js-0.3":  # the Python SDK of 0.3 lacks these two operations
        listed = await official.call("list_push", {"id": task["id"]})
        assert [config["pushNotificationConfig"]["id"] for config in listed] == ["w-1"]
        await official.call("delete_push", one)
        assert await official.call("list_push", {"id": task["id"]}) == []


async def test_failures_are_states_that_say_why(official: Official) -> None:
    failed = await send(official, "fail")
    assert (state(failed), said(failed)) == ("failed", "it did not work")
    refused = await send(official, "refuse")
    assert said(refused) == "not this"
    # The Python SDK does not know this state of its own proto.
    by_proto = official.peer == "python-0.3" and official.binding != "JSONRPC"
    assert state(refused) == ("unknown" if by_proto else "rejected")


async def test_what_is_refused_is_an_error_that_says_why(official: Official) -> None:
    done = await send(official, "two")
    for do, params, code, name in (
        ("get", {"id": "nobody"}, "-32001", "TaskNotFound"),
        ("cancel", {"id": "nobody"}, "-32001", "TaskNotFound"),
        ("cancel", {"id": done["id"]}, "-32002", "TaskNotCancelable"),
        ("send", request_of("hello", taskId="nobody"), "-32001", "TaskNotFound"),
    ):
        with pytest.raises(Refused) as refused:
            await official.call(do, params)
        told = str(refused.value)
        if official.peer == "js-0.3":
            assert refused.value.kind == f"{name}Error", (do, told)
        elif official.binding == "JSONRPC":
            assert code in told, (do, told)
        else:
            assert refused.value.kind != "A2AClientJSONError", (do, told)
