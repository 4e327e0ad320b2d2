"""A REQUEST is answered in the same way over both transports, and by another replica."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.kit.processes import free_port
from tests.kit.services.postgres import PostgresServer
from tests.kit.waiting import until
from tests.server.envelope.agents import Gates
from tests.server.envelope.speaking import (
    SUBPROTOCOL,
    Json,
    Speaker,
    by_post,
    by_socket,
    is_last,
    request,
    sequences,
)
from tests.server.envelope.speaking import statuses as statuses_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def id() -> str:
    return uuid.uuid4().hex


def error_of(answers: list[Json]) -> Json:
    assert len(answers) == 1, answers
    payload = answers[0]["payload"]
    assert payload["status"] == "error"
    found: Json = payload["error"]
    return found


async def test_a_query_gets_one_response(speaker: Speaker, id: str) -> None:
    (answer,) = await speaker.ask(request("search", {"query": "refund", "max_results": 2}, id=id))
    assert answer["message"]["type"] == "RESPONSE"
    assert answer["message"]["correlationId"] == id
    assert answer["target"] == {"agentId": "me"}
    assert answer["source"]["agentId"] == "knowledge-base"
    payload = answer["payload"]
    assert payload["status"] == "success"
    assert [each["title"] for each in payload["results"]] == ["refund 0", "refund 1"]
    assert payload["metadata"]["totalResults"] == 2
    assert payload["metadata"]["processingTime"] >= 0


async def test_a_query_may_have_events_before_its_response(
    speaker: Speaker, gates: Gates, id: str
) -> None:
    gates.of(id).set()
    answers = await speaker.ask(request("report", {"name": id}, id=id, stream=True))
    assert statuses_of(answers)[-1] == "RESPONSE success"
    assert {*statuses_of(answers)[:-1]} == {"EVENT partial"}
    assert sequences(answers) == [*range(1, len(answers))]
    assert answers[-1]["payload"]["results"] == [{"text": "0 1 2 3 "}]
    assert {each["message"]["correlationId"] for each in answers} == {id}


async def test_a_command_is_accepted_and_its_last_event_has_the_status(
    speaker: Speaker, gates: Gates, id: str
) -> None:
    gates.of(id).set()
    answers = await speaker.ask(request("gated", {"name": id}, id=id, sub="command"))
    assert statuses_of(answers)[0] == "RESPONSE accepted"
    assert answers[0]["payload"]["metadata"]["taskId"]
    assert {*statuses_of(answers)[1:-1]} == {"EVENT partial"}
    assert statuses_of(answers)[-1] == "EVENT success"
    assert answers[-1]["payload"]["metadata"]["state"] == "TASK_STATE_COMPLETED"
    failed = await speaker.ask(request("fails", id=f"{id} fails", sub="command"))
    assert statuses_of(failed)[-1] == "EVENT error"
    assert failed[-1]["payload"]["error"]["code"] == "TASK_FAILED"


async def test_a_notification_gets_no_answer_and_is_done(
    speaker: Speaker, gates: Gates, id: str
) -> None:
    message = request("gated", {"name": id}, id=id, sub="notification")
    assert await speaker.ask(message) == []
    await until(lambda: id in gates.began, 5)
    gates.of(id).set()
    assert await speaker.ask(request("nothing", id=f"{id} 2", sub="notification")) == []


async def test_a_question_is_answered_by_a_further_request(speaker: Speaker, id: str) -> None:
    for sub in ("query", "command"):
        first = await speaker.ask(request("trip", id=f"{id} {sub}", sub=sub))
        asked = first[-1]["payload"]
        assert asked["status"] == "input-required"
        if sub == "query":
            assert asked["results"] == [{"text": "Where to?"}]
        task = asked["metadata"]["taskId"]
        answer = request("trip", "Rome", id=f"{id} {sub} 2", sub=sub, taskId=task)
        last = (await speaker.ask(answer))[-1]["payload"]
        assert last["status"] == "success"
        if sub == "query":
            assert last["results"] == [{"text": "to Rome"}]


async def test_operations_of_a2a_are_actions(speaker: Speaker, gates: Gates, id: str) -> None:
    message = {"messageId": id, "role": "ROLE_USER", "parts": [{"data": {"query": "q"}}]}
    metadata = {"skill": "search"}
    parameters = {"message": message, "metadata": metadata}
    (sent,) = await speaker.ask(request("a2a.SendMessage", parameters, id=f"{id} 1"))
    assert sent["payload"]["results"][0]["message"]["role"] == "ROLE_AGENT"

    gates.of(id).set()
    message = {"messageId": f"{id} s", "role": "ROLE_USER", "parts": [{"data": {"name": id}}]}
    parameters = {"message": message, "metadata": {"skill": "report"}}
    streamed = await speaker.ask(request("a2a.SendStreamingMessage", parameters, id=f"{id} 2"))
    assert statuses_of(streamed)[-1] == "RESPONSE success"
    assert "task" in streamed[0]["payload"]["results"][0]
    task = streamed[0]["payload"]["metadata"]["taskId"]

    (got,) = await speaker.ask(request("a2a.GetTask", {"id": task}, id=f"{id} 3"))
    assert got["payload"]["results"][0]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert got["payload"]["metadata"]["taskId"] == task

    resumed = await speaker.ask(request("a2a.SubscribeToTask", {"id": task}, id=f"{id} 4", after=2))
    assert sequences(resumed) == sequences(streamed)[2:]
    (listed,) = await speaker.ask(request("a2a.ListTasks", {"pageSize": 1}, id=f"{id} 5"))
    total = listed["payload"]["results"][0]["totalSize"]
    assert listed["payload"]["metadata"]["totalResults"] == total > 0


async def test_a_running_task_is_canceled_by_its_operation(
    speaker: Speaker, gates: Gates, url: str, id: str
) -> None:
    async with by_socket(url) as other:
        await other.send(request("gated", {"name": id}, id=id, sub="command"))
        task = (await other.next(id))["payload"]["metadata"]["taskId"]
        (canceled,) = await speaker.ask(request("a2a.CancelTask", {"id": task}, id=f"{id} c"))
        assert canceled["payload"]["metadata"]["state"] == "TASK_STATE_CANCELED"
        last = (await other.rest(id))[-1]["payload"]
        assert (last["status"], last["error"]["code"]) == ("error", "TASK_CANCELED")


@pytest.mark.parametrize(
    ("action", "parameters", "metadata", "code", "field"),
    [
        ("search", {"max_results": 1}, {}, "INVALID_PARAMS", "payload.parameters.query"),
        ("search", {"query": "q", "max_results": "x"}, {}, "INVALID_PARAMS", "max_results"),
        ("sell", {}, {}, "UNKNOWN_ACTION", ""),
        ("a2a.Sell", {}, {}, "UNKNOWN_ACTION", ""),
        ("a2a.GetTask", {}, {}, "INVALID_PARAMS", "id"),
        ("a2a.GetTask", {"id": "t"}, {"stream": True}, "INVALID_PARAMS", "metadata.stream"),
        ("search", {"query": "q"}, {"after": 1}, "INVALID_PARAMS", "metadata.after"),
        ("search", {"query": "q"}, {"taskId": "none"}, "TASK_NOT_FOUND", ""),
        ("search", {"query": "q"}, {"timeout": -1}, "INVALID_REQUEST", "timeout"),
        (
            "search",
            {"query": "q"},
            {"serviceParameters": {"A2A-Version": "0.3"}},
            "VERSION_NOT_SUPPORTED",
            "",
        ),
    ],
)
async def test_a_refused_request_says_why(
    speaker: Speaker, id: str, action: str, parameters: Any, metadata: Json, code: str, field: str
) -> None:
    answers = await speaker.ask(request(action, parameters, id=id, **metadata))
    error = error_of(answers)
    assert error["code"] == code, error
    assert error["message"]
    if field:
        assert any(each["field"].endswith(field) for each in error["violations"]), error
    assert answers[0]["message"]["correlationId"] == id


async def test_a_timeout_ends_the_wait_and_the_task(
    speaker: Speaker, gates: Gates, id: str
) -> None:
    for form in ({"sub": "query"}, {"sub": "query", "stream": True}, {"sub": "command"}):
        name = f"{id} {len(gates.began)}"
        answers = await speaker.ask(request("gated", {"name": name}, id=name, timeout=50, **form))
        payload = answers[-1]["payload"]
        assert payload["status"] == "error"
        assert payload["error"]["code"] == "DEADLINE_EXCEEDED", payload
        task = payload["metadata"]["taskId"]

        async def has_failed(task: str = task) -> bool:
            (got,) = await speaker.ask(request("a2a.GetTask", {"id": task}, id=uuid.uuid4().hex))
            return bool(got["payload"]["metadata"]["state"] == "TASK_STATE_FAILED")

        await until(has_failed, 5)


async def test_the_same_message_again_gets_the_same_answer(
    speaker: Speaker, gates: Gates, url: str, id: str
) -> None:
    message = request("search", {"query": id}, id=id)
    first = await speaker.ask(message)
    again = request("search", {"query": id}, id=id, retryCount=1, timeout=60_000)
    second = await speaker.ask(again)
    assert gates.calls[id] == 1
    assert first[0]["payload"]["results"] == second[0]["payload"]["results"]
    for by in (by_post, by_socket):
        async with by(url) as other:
            third = await other.ask(again)
            assert third[0]["payload"]["results"] == first[0]["payload"]["results"]
    assert gates.calls[id] == 1
    reused = error_of(await speaker.ask(request("search", {"query": "other"}, id=id)))
    assert reused["code"] == "MESSAGE_ID_REUSED"


async def test_anonymous_senders_have_message_ids_of_their_own(
    gates: Gates, url: str, id: str
) -> None:
    async with by_post(url) as other:
        for agent in ("ann", "ben"):
            message = request("search", {"query": f"{id} {agent}"}, id=id, agent=agent)
            for _ in range(2):
                (answer,) = await other.ask(message)
                titles = [each["title"] for each in answer["payload"]["results"]]
                assert titles[0] == f"{id} {agent} 0"
    assert gates.calls[f"{id} ann"] == gates.calls[f"{id} ben"] == 1


async def test_a_message_again_joins_while_it_runs(
    speaker: Speaker, gates: Gates, url: str, id: str
) -> None:
    message = request("gated", {"name": id}, id=id)
    async with by_socket(url) as other:
        await other.send(message)
        await until(lambda: id in gates.began, 5)
        joining = asyncio.create_task(speaker.ask({**message}))
        command = request("gated", {"name": id}, id=id, sub="command")
        async with by_socket(url) as third:
            await third.send(command)
            assert (await third.next(id))["payload"]["status"] == "accepted"
            gates.of(id).set()
            (first,), (joined,) = await other.rest(id), await joining
            assert first["payload"]["results"] == joined["payload"]["results"]
            last = (await third.rest(id))[-1]["payload"]
        assert last["status"] == "success"
        assert last["metadata"]["taskId"] == first["payload"]["metadata"]["taskId"]
    assert gates.calls[id] == 1


async def test_a_retry_of_a_message_that_never_arrived_simply_runs(
    speaker: Speaker, gates: Gates, id: str
) -> None:
    (answer,) = await speaker.ask(request("search", {"query": id}, id=id, retryCount=3))
    assert answer["payload"]["status"] == "success"
    assert gates.calls[id] == 1


async def test_a_message_sent_again_with_after_goes_on_with_the_next_event(
    speaker: Speaker, gates: Gates, id: str
) -> None:
    gates.of(id).set()
    for form in ({"stream": True}, {"sub": "command"}):
        name = f"{id} {form}"
        gates.of(name).set()
        message = request("report", {"name": name}, id=name, **form)
        whole = await speaker.ask(message)
        for after in (1, 3, len(sequences(whole))):
            again = request("report", {"name": name}, id=name, after=after, **form)
            rest = await speaker.ask(again)
            assert sequences(rest) == sequences(whole)[after:]
            assert rest[-1]["payload"]["status"] == "success"
    assert {gates.calls[each] for each in gates.calls if id in each} == {1}


async def test_a_resumed_stream_says_the_state_that_the_task_has(
    speaker: Speaker, gates: Gates, id: str
) -> None:
    gates.of(id).set()
    whole = await speaker.ask(request("report", {"name": id}, id=id, sub="command"))
    again = request("report", {"name": id}, id=id, sub="command", after=3)
    rest = [each for each in await speaker.ask(again) if each["message"]["type"] == "EVENT"]
    assert [state_of(each) for each in rest] == [state_of(each) for each in whole[-len(rest) :]]
    assert state_of(rest[0]) == "TASK_STATE_WORKING"


def state_of(message: dict[str, Any]) -> str:
    return str(message["payload"]["metadata"]["state"])


async def test_heartbeats_are_answered_once(speaker: Speaker, id: str) -> None:
    message = request("x", id=id, kind="HEARTBEAT")
    (answer,) = await speaker.ask(message)
    assert answer["message"]["type"] == "HEARTBEAT"
    assert answer["message"]["correlationId"] == id
    assert answer["payload"]["draining"] is False


async def test_an_unknown_type_is_refused(speaker: Speaker, id: str) -> None:
    error = error_of(await speaker.ask(request("x", id=id, kind="INVENTORY")))
    assert error["code"] == "UNKNOWN_MESSAGE_TYPE"


async def test_extensions_and_traces_are_asked_for_by_service_parameters(
    speaker: Speaker, id: str
) -> None:
    uri = "urn:parley:usage:v1"
    asked = request("a2a.GetUsage", id=f"{id} 1")
    refused = error_of(await speaker.ask(asked))
    assert refused["code"] in ("EXTENSION_SUPPORT_REQUIRED", "UNKNOWN_ACTION")
    parameters = {"A2A-Extensions": uri}
    asked = request("a2a.GetUsage", id=f"{id} 2", serviceParameters=parameters)
    (answer,) = await speaker.ask(asked)
    assert answer["payload"]["status"] in ("success", "error")


async def test_the_status_of_a_post_is_that_of_its_error(url: str, id: str) -> None:
    async with aiohttp.ClientSession() as session:

        async def status(body: Any, **options: Any) -> int:
            async with session.post(f"{url}/envelope", data=body, **options) as answer:
                if answer.status != 204:
                    assert (await answer.json())["message"]["type"] == "RESPONSE"
                return answer.status

        json = {"content-type": "application/json"}
        assert await status(b"{}", headers={"content-type": "text/plain"}) == 415
        assert await status(b"{}", headers=json) == 400
        assert await status(b"\xff", headers=json) == 400
        async with session.post(f"{url}/envelope", json=request("no", id=id)) as answer:
            assert answer.status == 404
        async with session.get(f"{url}/envelope") as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "POST")


# -- the same message to another replica, after the first one was killed ---------------------------


SCRIPT = Path(__file__).with_name("replica.py")


class Replica:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    async def is_ready(self) -> bool:
        assert self.process.returncode is None
        async with aiohttp.ClientSession() as session:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{self.url}/health/ready") as answer:
                    return answer.status == 200
        return False

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@pytest.fixture(scope="module")
def acts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas") / "acts"


@pytest.fixture(scope="module")
async def replicas(postgres: PostgresServer, acts: Path) -> AsyncIterator[list[Replica]]:
    started, store = [], postgres.new_url()
    for _ in range(2):
        port = free_port()
        with acts.with_name("log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, SCRIPT, str(port), store, str(acts),
                stdout=log, stderr=log,
            )  # fmt: skip
        started.append(Replica(process, port))
    try:
        for replica in started:
            await until(replica.is_ready, 30)
        yield started
    finally:
        for replica in started:
            await replica.kill()


@pytest.mark.service
async def test_a_message_to_two_replicas_at_once_is_done_once(
    replicas: list[Replica], acts: Path
) -> None:
    message = request("pay", {"what": "rent"}, id="m-2")
    async with by_socket(replicas[0].url) as one, by_socket(replicas[1].url) as two:
        answers = await asyncio.gather(*[each.ask(message) for each in (one, two)])
    (first,), (second,) = answers
    assert first["payload"]["results"] == second["payload"]["results"]
    assert first["payload"]["metadata"]["taskId"] == second["payload"]["metadata"]["taskId"]
    assert acts.read_text() == "rent\n"


@pytest.mark.service
async def test_a_killed_replica_loses_and_doubles_nothing(
    replicas: list[Replica], acts: Path
) -> None:
    first, second = replicas
    message = request("pay", {"what": "slow rent"}, id="m-1", sub="command")
    seen = []
    address = f"{first.url.replace('http', 'ws', 1)}/envelope"
    async with connect(address, subprotocols=[SUBPROTOCOL], proxy=None) as line:  # type: ignore[list-item]
        await line.send(json.dumps(message))
        with contextlib.suppress(ConnectionClosed):
            while True:
                seen.append(json.loads(await asyncio.wait_for(line.recv(), 20)))
                if len(seen) == 8:
                    await first.kill()
    last = sequences(seen)[-1]
    again = request("pay", {"what": "slow rent"}, id="m-1", sub="command", after=last, retryCount=1)
    rest = []
    async with by_socket(second.url) as other:
        await other.send(again)
        while not rest or not is_last(rest[-1]):
            rest.append(await other.next("m-1", 30))
    assert rest[-1]["payload"]["status"] == "success"
    numbers = sequences(seen) + sequences(rest)
    assert numbers == [*range(1, len(numbers) + 1)]
    async with by_post(second.url) as post:
        query = request("pay", {"what": "slow rent"}, id="m-1", retryCount=2)
        (answer,) = await post.ask(query)
    assert answer["payload"]["metadata"]["taskId"] == rest[-1]["payload"]["metadata"]["taskId"]
    text = answer["payload"]["results"][0]["text"]
    assert text == "slow rent " + "".join(f"{n} " for n in range(20))
    assert acts.read_text() == "rent\nslow rent\n"
