"""The official SDK's client against our server, for every operation."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import pytest

from .conftest import Processes, case
from .counterpart import agent, gate
from .official_caller import WAIT, Official, Refused, request
from .webhook import webhook

pytestmark = pytest.mark.anyio


BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
PEERS = ("python-1.3", "js-1.3", "go-2.4")
CLIENTS = [case(peer, binding, "1.0") for peer in PEERS for binding in BINDINGS]
BY_OTHER_VERSION = [case(peer, binding, "0.3") for peer in PEERS for binding in BINDINGS]


@pytest.fixture(scope="module", params=CLIENTS, ids=" ".join)
async def official(
    request: pytest.FixtureRequest, house: str, official_clients: Processes
) -> Official:
    """A client of 1.x that uses 1.0, over each binding."""
    peer, binding, version = request.param
    return Official(peer, await official_clients(peer), house, binding, version)


@pytest.fixture(scope="module", params=CLIENTS + BY_OTHER_VERSION, ids=" ".join)
async def either(
    request: pytest.FixtureRequest, house: str, official_clients: Processes
) -> Official:
    """A client of 1.x that uses 1.0, or 0.3 by translation."""
    peer, binding, version = request.param
    return Official(peer, await official_clients(peer), house, binding, version)


def state(task: Any) -> str:
    """Return the state of a task or of a status update."""
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


def text_of(parts: list[Any]) -> str:
    return "".join(part.get("text", "") for part in parts)


def said(task: Any) -> str:
    """Return the text of the status."""
    return text_of(task["status"]["message"]["parts"])


def kinds(events: list[Any]) -> list[str]:
    return [next(iter(event)) for event in events]


def states(events: list[Any]) -> list[str]:
    """Return the states in a stream, in order."""
    return [state(value) for event in events for value in event.values() if "status" in value]


def folded(events: list[Any]) -> dict[str, Any]:
    """Return the artifacts after all updates are applied."""
    artifacts = {a["artifactId"]: a for e in events for a in e.get("task", {}).get("artifacts", [])}
    for event in events:
        if update := event.get("artifactUpdate"):
            artifact = update["artifact"]
            if update.get("append"):
                before = artifacts[artifact["artifactId"]]
                artifact = {**before, "parts": before["parts"] + artifact["parts"]}
            artifacts[artifact["artifactId"]] = artifact
    return artifacts


def plain(artifacts: Any) -> dict[str, Any]:
    """Return artifacts with the text of each in one piece, whatever the chunks."""
    return {
        a["artifactId"]: {
            **a,
            "parts": [p for p in a["parts"] if "text" not in p],
            "text": text_of(a["parts"]),
        }
        for a in artifacts
    }


async def test_the_card_is_resolved(official: Official) -> None:
    card = await official.call("card")
    assert (card["name"], card["version"]) == ("Counterpart", "2.1")
    assert card["description"] == "What official clients talk to"
    assert card["provider"] == {"organization": "Parley", "url": "https://parley.example"}
    offered = [(i["protocolBinding"], i["protocolVersion"]) for i in card["supportedInterfaces"]]
    known = [(binding, version) for version in ("1.0", "0.3") for binding in BINDINGS]
    assert offered == [*known, ("urn:parley:envelope:v1", "1.0")]  # unknown to all SDKs
    assert card["supportedInterfaces"][0]["url"].rstrip("/") == official.url
    assert card["capabilities"]["streaming"] is True
    uris = {extension["uri"] for extension in card["capabilities"]["extensions"]}
    assert uris == {
        "urn:parley:resumable-streams:v1",
        "urn:parley:idempotent-send:v1",
        "urn:parley:typed-questions:v1",
        "urn:parley:skill-schemas:v1",
        "urn:parley:call-chain:v1",
        "urn:parley:in-task-authorization:v1",
        "urn:parley:file-transfer:v1",
        "urn:parley:push-delivery:v1",
    }
    assert [skill["id"] for skill in card["skills"]] == list(agent.skills)
    assert card["skills"][0]["examples"] == ["hello"]
    assert "image/png" in card["defaultInputModes"]


async def test_a_message_is_answered_with_a_message(either: Official) -> None:
    reply = await either.send("hello", contextId="c-1")
    assert (reply["role"], reply["contextId"]) == ("ROLE_AGENT", "c-1")
    assert text_of(reply["parts"]) == "hello yourself"
    assert "taskId" not in reply
    [event] = [event async for event in either.stream("hello")]
    assert text_of(event["message"]["parts"]) == "hello yourself"


async def test_a_message_is_answered_with_a_task_that_has_ended(either: Official) -> None:
    task = await either.send("two")
    assert state(task) == "COMPLETED"
    log, answer = task["artifacts"]
    assert (log["name"], text_of(log["parts"])) == ("log", "begun. done.")
    assert (answer["name"], answer["description"]) == ("answer", "the one")
    assert answer["parts"][0]["data"] == {"answer": 42, "nothing": None}
    assert text_of(task["history"][0]["parts"]) == "two"
    assert await either.call("get", {"id": task["id"]}) == task


async def test_a_task_is_streamed_in_order(official: Official) -> None:
    for skill in ("report", "two"):
        events = [event async for event in official.stream(skill)]
        assert kinds(events)[0] == "task"
        assert set(kinds(events)[1:]) == {"statusUpdate", "artifactUpdate"}
        assert [s for s in states(events) if s != "WORKING"] == ["SUBMITTED", "COMPLETED"]
        updates = [e["artifactUpdate"] for e in events if "artifactUpdate" in e]
        last = {u["artifact"]["artifactId"]: u.get("lastChunk") for u in updates}
        assert set(last.values()) == {True}
        first = events[0]["task"]
        for event in events[1:]:
            [update] = event.values()
            assert (update["taskId"], update["contextId"]) == (first["id"], first["contextId"])
        task = await official.call("get", {"id": first["id"]})
        assert plain(folded(events).values()) == plain(task["artifacts"])
        assert {a["artifactId"] for a in task["artifacts"]} == set(last)


async def test_a_task_is_fetched_until_it_has_ended(either: Official) -> None:
    name = f"wait {uuid4()}"
    task = await either.send(name, {"returnImmediately": True})
    assert state(task) in ("SUBMITTED", "WORKING")
    gate(name).set()
    async with asyncio.timeout(WAIT):
        while state(task) != "COMPLETED":
            task = await either.call("get", {"id": task["id"]})
    assert text_of(task["artifacts"][0]["parts"]) == "waited"


async def test_questions_are_answered_in_the_same_task(either: Official) -> None:
    asked = await either.send("book")
    assert (state(asked), said(asked)) == ("INPUT_REQUIRED", "From where?")
    again = await either.send("Rome", taskId=asked["id"], contextId=asked["contextId"])
    assert (again["id"], state(again), said(again)) == (
        asked["id"], "INPUT_REQUIRED", "To where?",
    )  # fmt: skip
    done = await either.send("Oslo", taskId=asked["id"])
    assert state(done) == "COMPLETED"
    assert text_of(done["artifacts"][0]["parts"]) == "Rome to Oslo"
    heard = [text_of(message["parts"]) for message in done["history"]]
    assert heard == ["book", "From where?", "Rome", "To where?", "Oslo"]


async def test_questions_are_answered_in_streams(either: Official) -> None:
    asked = [event async for event in either.stream("book")]
    assert states(asked)[-1] == "INPUT_REQUIRED"
    task_id = asked[0]["task"]["id"]
    again = [event async for event in either.stream("Rome", taskId=task_id)]
    assert (states(again)[-2:], said(again[-1]["statusUpdate"])) == (
        ["WORKING", "INPUT_REQUIRED"], "To where?",
    )  # fmt: skip
    done = [event async for event in either.stream("Oslo", taskId=task_id)]
    assert states(done)[-2:] == ["WORKING", "COMPLETED"]
    [artifact] = folded(done).values()
    assert text_of(artifact["parts"]) == "Rome to Oslo"


async def test_tasks_are_listed_by_filters_and_pages(official: Official) -> None:
    here = uuid4().hex
    tasks = [await official.send("two", contextId=here) for _ in range(5)]
    parked = await official.send("book", contextId=here)
    ids = [task["id"] for task in (*tasks, parked)][::-1]

    async def page(**params: Any) -> tuple[list[str], Any]:
        listed = await official.call("list", {"contextId": here, **params})
        return [task["id"] for task in listed.get("tasks") or []], listed

    found, whole = await page()
    assert (found, whole["totalSize"], whole["pageSize"]) == (ids, 6, 50)
    assert not any("artifacts" in task for task in whole["tasks"])
    found, whole = await page(status="TASK_STATE_COMPLETED", includeArtifacts=True)
    assert (found, whole["totalSize"]) == (ids[1:], 5)
    assert whole["tasks"][0]["artifacts"] == tasks[-1]["artifacts"]
    found, whole = await page(historyLength=1, pageSize=1)
    assert [text_of(m["parts"]) for m in whole["tasks"][0]["history"]] == ["book"]
    moment = tasks[3]["status"]["timestamp"]
    found, _ = await page(statusTimestampAfter=moment)
    assert set(found) >= {tasks[3]["id"], tasks[4]["id"], parked["id"]}
    assert (await page(status="TASK_STATE_FAILED"))[0] == []

    walked, token = [], ""
    while True:
        found, listed = await page(pageSize=4, pageToken=token)
        assert listed["totalSize"] == 6
        walked += found
        if not (token := listed.get("nextPageToken", "")):
            break
        await official.send("two", contextId="elsewhere")
    assert walked == ids


async def test_a_running_task_is_canceled(either: Official) -> None:
    async with aclosing(either.stream(f"wait {uuid4()}")) as stream:
        task = (await anext(stream))["task"]
        canceled = await either.call("cancel", {"id": task["id"]})
        assert (canceled["id"], state(canceled)) == (task["id"], "CANCELED")
        rest = [event async for event in stream]
    assert states(rest)[-1] == "CANCELED"
    if either.version == "1.0":
        assert await either.call("cancel", {"id": task["id"]}) == canceled  # repeating is no error
        return
    # 0.3 §8.2. Over HTTP+JSON, Python's client shows only the status of an error.
    with pytest.raises(Refused, match=r"ended as canceled|400 Bad Request"):
        await either.call("cancel", {"id": task["id"]})


async def test_a_running_task_is_subscribed_to(official: Official) -> None:
    name = f"report {uuid4()}"
    async with aclosing(official.stream(name)) as first:
        task = (await anext(first))["task"]
        async with aclosing(official.items("subscribe", {"id": task["id"]})) as second:
            begun = await anext(second)
            assert kinds([begun]) == ["task"]
            gate(name).set()
            seen = [begun] + [event async for event in second]
        rest = [event async for event in first]
    assert states(seen)[-1] == states(rest)[-1] == "COMPLETED"
    whole = plain((await official.call("get", {"id": task["id"]}))["artifacts"])
    assert plain(folded(seen).values()) == plain(folded(rest).values()) == whole
    [report] = whole.values()
    assert report["text"] == "".join(f"chunk {n}. " for n in range(5))


async def test_a_parked_task_is_subscribed_to_over_its_turns(official: Official) -> None:
    parked = await official.send("book")
    async with aclosing(official.items("subscribe", {"id": parked["id"]})) as stream:
        assert await anext(stream) == {"task": parked}
        for answer in ("Rome", "Oslo"):
            await official.send(answer, taskId=parked["id"])
        events = [event async for event in stream]
    told = ["WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"]
    assert [s for n, s in enumerate(states(events)) if s != states(events)[n - 1] or not n] == told


async def test_a_stream_stays_open_while_something_is_authorised(either: Official) -> None:
    async with aclosing(either.stream("pay")) as stream:
        events = [await anext(stream)]
        while states(events)[-1] != "AUTH_REQUIRED":
            events.append(await anext(stream))
        assert said(events[-1]["statusUpdate"]) == "Please log in"
        paid = await either.send("done", taskId=events[0]["task"]["id"])
        events += [event async for event in stream]
    assert states(events)[-1] == state(paid) == "COMPLETED"


async def test_as_much_history_is_given_as_is_asked_for(official: Official) -> None:
    task = await official.send("book", {"historyLength": 0})
    assert "history" not in task
    one = await official.send("Rome", {"historyLength": 1}, taskId=task["id"])
    assert [text_of(m["parts"]) for m in one["history"]] == ["Rome"]
    assert len((await official.call("get", {"id": task["id"], "historyLength": 2}))["history"]) == 2
    assert "history" not in await official.call("get", {"id": task["id"], "historyLength": 0})
    assert len((await official.call("get", {"id": task["id"]}))["history"]) == 3


async def test_earlier_tasks_are_referred_to(official: Official) -> None:
    first = await official.send("two")
    reply = await official.send(
        "recall", contextId=first["contextId"], referenceTaskIds=[first["id"]]
    )
    assert text_of(reply["parts"]) == "log, answer"


async def test_files_and_data_come_back_as_they_were(official: Official) -> None:
    parts = [
        {"text": "Grüße, 世界"},
        {"raw": "iVBORw0KGgo=", "mediaType": "image/png", "filename": "dot.png"},
        {"url": "https://files.example/a.png", "mediaType": "image/png"},
        {"data": {"n": 42, "x": 1.5, "none": None, "list": [1, None, True], "deep": {"": []}}},
        *(
            [{"data": None}] if official.peer == "python-1.3" else []
        ),  # the other SDKs do not send it
        {"data": [0, -7, 9007199254740991]},
        {"data": "text", "metadata": {"unit": "m", "n": 3}},
    ]
    if (official.peer, official.binding) == ("go-2.4", "GRPC"):
        parts = [part for part in parts if isinstance(part.get("data", {}), dict)]  # objects only
    task = await official.send("echo", parts=parts)
    [artifact] = task["artifacts"]
    assert artifact["parts"] == parts
    metadata = artifact["metadata"]
    assert (float(metadata["big"]), metadata["none"]) == (float(2**60), None)
    assert task["history"][0]["parts"] == parts


async def test_a_file_comes_back_in_either_version(either: Official) -> None:
    file = {"raw": "iVBORw0KGgo=", "mediaType": "image/png"}
    task = await either.send("echo", parts=[{"text": "echo"}, file])
    for parts in (task["artifacts"][0]["parts"], task["history"][0]["parts"]):
        assert file.items() <= parts[1].items()


async def test_failures_are_states_that_say_why(either: Official) -> None:
    failed = await either.send("fail")
    assert (state(failed), said(failed)) == ("FAILED", "it did not work")
    refused = await either.send("refuse")
    assert (state(refused), said(refused)) == ("REJECTED", "not this")
    crashed = await either.send("crash")
    assert state(crashed) == "FAILED"
    assert "secret" not in said(crashed)


PUSH = {"taskId": "t", "id": "p", "url": "https://hooks.example"}


async def test_webhooks_are_kept(official: Official) -> None:
    task = await official.send("book")
    wanted = {"taskId": task["id"], "id": "w-1", "url": "https://hooks.example/x"}
    made = await official.call("create_push", wanted)
    assert {key: made[key] for key in wanted} == wanted
    one = {"taskId": task["id"], "id": "w-1"}
    assert (await official.call("get_push", one))["url"] == wanted["url"]
    await official.call("create_push", {**wanted, "id": "w-2"})
    listed = await official.call("list_push", {"taskId": task["id"]})
    assert sorted(config["id"] for config in listed["configs"]) == ["w-1", "w-2"]
    for _ in range(2):  # the second time is no error either
        await official.call("delete_push", one)
    listed = await official.call("list_push", {"taskId": task["id"]})
    assert [config["id"] for config in listed["configs"]] == ["w-2"]
    with pytest.raises(Refused) as refused:
        await official.call("get_push", one)
    assert refused.value.kind == "TaskNotFoundError"


async def test_a_webhook_is_told_of_a_task_in_the_version_of_its_caller(either: Official) -> None:
    async with webhook() as hook:
        config = {"id": "w", "url": hook.url, "token": "secret"}
        task = await either.send("report", {"taskPushNotificationConfig": config})
        told = [await asyncio.wait_for(hook.told.get(), WAIT)]
        while "completed" not in json.dumps(told[-1].body).lower():
            told.append(await asyncio.wait_for(hook.told.get(), WAIT))
    assert {notification.headers["x-a2a-notification-token"] for notification in told} == {"secret"}
    bodies = [notification.body for notification in told]
    if either.version == "1.0":
        assert bodies[0]["task"]["id"] == task["id"]
        assert bodies[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert {next(iter(body)) for body in bodies} == {"task", "statusUpdate", "artifactUpdate"}
    else:
        assert {(body["kind"], body["id"]) for body in bodies} == {("task", task["id"])}
        assert bodies[-1]["status"]["state"] == "completed"


@pytest.mark.parametrize(
    ("do", "params", "kind"),
    [
        ("get", {"id": "nobody"}, "TaskNotFoundError"),
        ("cancel", {"id": "nobody"}, "TaskNotFoundError"),
        ("subscribe", {"id": "nobody"}, "TaskNotFoundError"),
        ("send", request("hello", taskId="nobody"), "TaskNotFoundError"),
        ("stream", request("hello", taskId="nobody"), "TaskNotFoundError"),
        ("send", request("nothing that I know"), "InvalidParamsError"),
        ("send", request("hello", {"historyLength": -1}), "InvalidParamsError"),
        ("list", {"pageSize": 1000}, "InvalidParamsError"),
        ("list", {"pageToken": "made up"}, "InvalidParamsError"),
        ("send", request("echo", parts=[{"raw": "AA==", "mediaType": "video/mp4"}]),
         "ContentTypeNotSupportedError"),
        ("send", request("hello", {"taskPushNotificationConfig": {"url": "no address"}}),
         "InvalidParamsError"),
        ("create_push", PUSH, "TaskNotFoundError"),
        ("get_push", {"taskId": "t", "id": "p"}, "TaskNotFoundError"),
        ("list_push", {"taskId": "t"}, "TaskNotFoundError"),
        ("extended_card", {}, "UnsupportedOperationError"),
    ],
)  # fmt: skip
async def test_what_is_refused_is_the_sdks_typed_error(
    official: Official, do: str, params: Any, kind: str
) -> None:
    await refused(official, do, params, kind)


async def refused(official: Official, do: str, params: Any, kind: str) -> None:
    if do in ("stream", "subscribe") and (official.peer, official.binding) == ("go-2.4", "JSONRPC"):
        # It reads only events, whatever the media type of the response.
        assert [event async for event in official.items(do, params)] == []
        return
    with pytest.raises(Refused) as caught:
        await official.call(do, params)
    assert caught.value.kind == kind, (do, caught.value)


async def test_a_task_that_has_ended_and_a_context_that_is_another_are_refused(
    official: Official,
) -> None:
    done = await official.send("two")
    parked = await official.send("book")
    for do, params, kind in (
        ("send", request("more", taskId=done["id"]), "UnsupportedOperationError"),
        ("stream", request("more", taskId=done["id"]), "UnsupportedOperationError"),
        ("subscribe", {"id": done["id"]}, "UnsupportedOperationError"),
        ("cancel", {"id": done["id"]}, "TaskNotCancelableError"),
        ("send", request("Rome", taskId=parked["id"], contextId="x"), "InvalidParamsError"),
    ):
        await refused(official, do, params, kind)


async def test_a_version_that_nobody_speaks_is_refused(official: Official) -> None:
    if official.peer != "python-1.3" or official.binding == "GRPC":
        return  # these always send their own version
    for do in ("send", "stream"):
        with pytest.raises(Refused, match=r"1\.0") as refused:
            await official.call(do, request("hello"), {"A2A-Version": "99.0"})
        assert refused.value.kind == "VersionNotSupportedError"


async def test_a_repeated_message_is_answered_once_for_those_who_ask(official: Official) -> None:
    headers = {"A2A-Extensions": "urn:parley:idempotent-send:v1"}
    again = request("two")
    first = await official.call("send", again, headers)
    assert await official.call("send", again, headers) == first
    assert await official.call("send", again) != first


async def test_data_goes_into_typed_skills_and_their_results_come_out(either: Official) -> None:
    reply = await either.send("convert", parts=[{"data": {"amount": 3, "currency": "EUR"}}])
    assert reply["parts"][0]["data"] == {"amount": 3, "currency": "EUR"}
    with pytest.raises(Refused, match="expected an integer, got an object"):
        await either.send("double", parts=[{"data": {"n": {}}}])


async def test_a_typed_question_is_asked_and_answered(either: Official) -> None:
    task = await either.send("convert some money")
    assert state(task) == "INPUT_REQUIRED"
    asked = task["status"]["message"]["parts"][-1]["data"]
    assert asked["schema"]["required"] == ["amount", "currency"]
    assert [problem["field"] for problem in asked["problems"]] == ["amount", "currency"]
    task = await either.send(
        "convert", parts=[{"data": {"amount": 3, "currency": "USD"}}], taskId=task["id"]
    )
    assert state(task) == "COMPLETED"
    assert task["artifacts"][0]["parts"][0]["data"] == {"amount": 3, "currency": "USD"}
