"""The client accepts slightly invalid answers, from the wire to the caller."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from parley.client import connect, connect_sync
from parley.model.cards import AgentExtension
from parley.model.operations import BY_NAME, GetTaskRequest, SubscribeToTaskRequest
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext, TraceContext
from parley.model.struct import Timestamp
from parley.model.tasks import Task, TaskState, TaskStatusUpdateEvent
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.wire import versions
from parley.wire.protobuf.messages import Messages
from tests.client.bindings.test_grpc import answering
from tests.kit.scripted import Scripted, app_of, card_of
from tests.kit.scripted_server import Agent, Exchange, card, scripted, talk, task

pytestmark = pytest.mark.anyio

NOON = Timestamp.parse("2026-01-31T12:00:00Z")


def said(text: str, role: str = "ROLE_AGENT") -> dict[str, Any]:
    return {"messageId": text, "role": role, "parts": [{"text": text}]}


def at(state: str, text: str = "", **more: Any) -> dict[str, Any]:
    status = {"state": f"TASK_STATE_{state}", **({"message": said(text)} if text else {})}
    return {**task(), "status": status, **more}


def update(state: str, text: str = "") -> dict[str, Any]:
    return {
        "statusUpdate": {"taskId": "t-1", "contextId": "c-1", "status": at(state, text)["status"]}
    }


# -- times, lists, ids, versions -------------------------------------------------------------------


@pytest.mark.parametrize(
    "moment", ["2026-01-31T12:00:00", "2026-01-31T12:00:00.000000", "2026-01-31 12:00:00+00:00"]
)
async def test_a_moment_without_a_zone_is_utc(moment: str) -> None:
    status = {"state": "TASK_STATE_COMPLETED", "timestamp": moment}
    async with talk(Agent(task() | {"status": status})) as (remote, _):
        assert (await remote.get("t-1")).status.timestamp == NOON


async def test_null_is_an_empty_list_where_a_list_is_due() -> None:
    capabilities = {"pushNotifications": True}
    async with talk(Agent(None, capabilities=capabilities)) as (remote, _):
        assert [config async for config in remote.push.list("t-1")] == []
        assert [each async for each in remote.tasks()] == []


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_null_is_an_empty_list_in_0_3_too(binding: str) -> None:
    async def agent(exchange: Exchange) -> None:
        if exchange.path.endswith(".json"):
            url = f"http://{exchange.headers['host']}"
            offered = {"url": url, "protocolBinding": binding, "protocolVersion": "0.3"}
            value = {**card(url), "supportedInterfaces": [offered]}
            value["capabilities"] = {"pushNotifications": True}
            await exchange.json(value)
        elif binding == "JSONRPC":
            await exchange.result(None)
        else:
            await exchange.json(None)

    async with scripted(agent) as server, connect(server.url, retries=0) as remote:
        assert [config async for config in remote.push.list("t-1")] == []
        if binding == "HTTP+JSON":
            assert [each async for each in remote.tasks()] == []


async def test_ids_that_an_answer_lacks_are_those_that_were_asked_for() -> None:
    done = {"status": {"state": "TASK_STATE_COMPLETED"}}
    async with talk(Agent(done)) as (remote, _):
        assert (await remote.get("t-9")).id == "t-9"
    async with talk(Agent({"task": done})) as (remote, _):
        got = await remote.send("go", task_id="t-9", context_id="c-9")
        assert got.id
        assert (got.id, got.context_id) == ("t-9", "c-9")


async def test_a_task_without_an_id_is_returned_as_it_stands() -> None:
    working = {"status": {"state": "TASK_STATE_WORKING", "message": said("on it")}}
    async with talk(Agent({"task": working})) as (remote, server):
        assert (await remote.send("go")).text == "on it"
        assert server.calls == ["SendMessage"]


async def test_what_is_understood_is_no_reason_to_warn(caplog: Any) -> None:
    status = {"state": "completed", "timestamp": "2026-01-31T12:00:00"}
    async with talk(Agent(task() | {"status": status})) as (remote, _):
        assert (await remote.get("t-1")).state is TaskState.COMPLETED
    assert not [each for each in caplog.records if each.name == "parley.client.answers"]


async def test_ids_that_an_event_lacks_are_those_of_the_one_before() -> None:
    async def streamed(exchange: Exchange) -> None:
        nameless = {"statusUpdate": {"status": {"state": "TASK_STATE_COMPLETED"}}}
        await exchange.stream(exchange.frame({"task": task("WORKING")}) + exchange.frame(nameless))

    async with talk(Agent(streamed)) as (remote, _):
        events = [event async for event in remote.stream("go")]
        last = events[-1]
        assert isinstance(last, TaskStatusUpdateEvent)
        assert (last.task_id, last.context_id) == ("t-1", "c-1")


@pytest.mark.parametrize("version", [None, ""])
async def test_an_interface_without_a_version_has_that_of_its_card(version: str | None) -> None:
    agent = Agent(task())
    async with scripted(agent) as server:
        offered = {"url": f"{server.url}/rpc", "protocolBinding": "JSONRPC"}
        agent.card_members = {"supportedInterfaces": [offered | {"protocolVersion": version}]}
        async with connect(server.url, retries=0) as remote:
            assert remote.version == "1.0"
            assert (await remote.get("t-1")).id == "t-1"
        # A card in the form of 0.3, without a version field.
        agent.card_members = {"supportedInterfaces": None, "url": f"{server.url}/rpc"}
        async with connect(server.url, retries=0) as remote:
            assert remote.version == "0.3"


# -- text that was sent only as progress -----------------------------------------------------------

ENDS = {
    "in the history": at("COMPLETED", history=[said("go", "ROLE_USER"), said("It is noon.")]),
    "nowhere": at("COMPLETED"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("streaming", [True, False])
async def test_what_was_said_on_the_way_is_the_text_of_a_task_without_any(
    end: str, streaming: bool
) -> None:
    async def streamed(exchange: Exchange) -> None:
        frames = [{"task": at("WORKING")}, update("WORKING", "It is noon."), update("COMPLETED")]
        await exchange.stream(b"".join(map(exchange.frame, frames)))

    working = at("WORKING", "It is noon.")
    between = [working, streamed] if streaming else [working]
    agent = Agent({"task": at("SUBMITTED")}, *between, ENDS[end])
    agent.card_members = {"capabilities": {"streaming": streaming}}
    async with talk(agent) as (remote, _):
        assert (await remote.send("what time is it?")).text == "It is noon."


def test_what_was_said_on_the_way_is_no_text_beside_other() -> None:
    history = (
        Message(message_id="1", role=Role.AGENT, parts=(Part(text="thinking"),)),
        Message(message_id="2", role=Role.USER, parts=(Part(text="go on"),)),
    )
    done = decoded(at("COMPLETED", "Done."))
    assert Task(id="t", status=done.status, history=history).text == "Done."
    silent = decoded(at("COMPLETED"))
    assert Task(id="t", status=silent.status, history=history[:1]).text == "thinking"
    # Text from before the caller's last message belongs to another turn.
    assert Task(id="t", status=silent.status, history=history).text == ""
    working = decoded(at("WORKING"))
    assert Task(id="t", status=working.status, history=history[:1]).text == ""


def decoded(members: dict[str, Any]) -> Task:
    import msgspec

    codec = versions.dialect("1.0").jsonrpc
    found = codec.read_result(BY_NAME["GetTask"], msgspec.json.encode(members))
    assert found.id
    return found


async def test_the_blocking_client_has_the_text_too() -> None:
    import asyncio

    agent = Agent({"task": ENDS["in the history"]})
    async with scripted(agent) as server:

        def call() -> str:
            with connect_sync(server.url) as remote:
                return remote.send("what time is it?").text

        assert await asyncio.to_thread(call) == "It is noon."


# -- unknown states --------------------------------------------------------------------------------


async def test_a_state_that_is_unknown_is_unspecified_and_told(caplog: Any) -> None:
    async with talk(Agent(at("ARCHIVED", "Done."))) as (remote, _):
        got = await remote.get("t-1")
        assert (got.state, got.text) == (TaskState.UNSPECIFIED, "Done.")
    assert "TASK_STATE_ARCHIVED" in caplog.text


@pytest.mark.parametrize("state", ["canceled", "TASK_STATE_CANCELLED", "cancelled", 5])
async def test_a_state_in_another_spelling_is_what_it_says(state: Any) -> None:
    async with talk(Agent(task() | {"status": {"state": state}})) as (remote, _):
        assert (await remote.get("t-1")).state is TaskState.CANCELED


async def test_a_wait_for_a_task_in_an_unknown_state_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.client.calls.follow.MAX_UNCHANGED_POLLS", 3)
    async with talk(Agent(at("ARCHIVED")), retries=0) as (remote, server):
        assert (await remote.wait("t-1", poll=0.01)).state is TaskState.UNSPECIFIED
        assert server.calls == ["GetTask"] * 4


async def test_a_wait_goes_on_while_something_happens_in_an_unknown_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.client.calls.follow.MAX_UNCHANGED_POLLS", 2)
    looks = [at("QUEUED", str(n)) for n in range(9)]
    async with talk(Agent(*looks, at("COMPLETED")), retries=0) as (remote, _):
        assert (await remote.wait("t-1", poll=0.01)).state is TaskState.COMPLETED


async def test_a_stream_goes_on_through_an_unknown_state() -> None:
    async def streamed(exchange: Exchange) -> None:
        frames = [{"task": at("WORKING")}, update("QUEUED"), update("COMPLETED")]
        await exchange.stream(b"".join(map(exchange.frame, frames)))

    async with talk(Agent(streamed)) as (remote, _):
        states = [event.status.state async for event in remote.stream("go")]  # type: ignore
        assert states == [TaskState.WORKING, TaskState.UNSPECIFIED, TaskState.COMPLETED]


async def test_a_stream_that_its_server_ends_in_an_unknown_state_is_over() -> None:
    async def streamed(exchange: Exchange) -> None:
        frames = [{"task": at("WORKING")}, update("ARCHIVED")]
        await exchange.stream(b"".join(map(exchange.frame, frames)))

    async with talk(Agent(streamed, at("ARCHIVED"))) as (remote, server):
        assert len([event async for event in remote.stream("go")]) == 2
        assert server.calls == ["SendStreamingMessage", "GetTask"]


# -- gRPC ------------------------------------------------------------------------------------------

MADE = Messages("lf.a2a.v1")


async def test_an_unknown_state_over_grpc_is_unspecified(caplog: Any) -> None:
    message = MADE["Task"]()
    message.id, message.status.state = "t-1", 99
    part = message.artifacts.add(artifact_id="a").parts.add()
    part.text = "noted"
    message.artifacts[0].parts.add().filename = "lost.bin"
    message.history.add(message_id="m", role=9).parts.add().text = "hi"

    async def answer(data: bytes, context: Any) -> bytes:
        return bytes(message.SerializeToString())

    async with answering(answer) as binding:
        got = await binding.call(BY_NAME["GetTask"], GetTaskRequest(id="t-1"), CallContext())
    assert (got.state, got.text) == (TaskState.UNSPECIFIED, "noted")
    assert got.artifacts[0].parts[1].filename == "lost.bin"
    assert got.history[0].role is Role.AGENT
    assert "the number 99" in caplog.text


async def test_what_follows_the_end_over_grpc_is_not_yielded() -> None:
    from parley.client.calls.service import RemoteService
    from parley.client.retry import Retry

    async def answer(data: bytes, context: Any) -> Any:
        for state in (2, 3, 2):
            message = MADE["StreamResponse"]()
            message.status_update.task_id = "t-1"
            message.status_update.status.state = state
            yield message.SerializeToString()

    async with answering(answer) as binding:
        service = RemoteService(binding, versions.read_card(card("http://x")), Retry())
        stream = service.stream(
            BY_NAME["SubscribeToTask"], SubscribeToTaskRequest(id="t-1"), CallContext()
        )
        states = [item.event.status.state async for item in stream]
    assert states == [TaskState.WORKING, TaskState.COMPLETED]


async def test_metadata_of_a_caller_is_sent_once_and_ours_beside_it() -> None:
    seen: list[tuple[str, str]] = []

    async def answer(data: bytes, context: Any) -> bytes:
        seen.extend((key, value) for key, value in context.invocation_metadata())
        await context.abort(grpc.StatusCode.NOT_FOUND, "no")
        return b""

    from parley.model.errors import A2AError

    context = CallContext(
        extensions=frozenset({"urn:b", "urn:a"}), trace=TraceContext(traceparent="00-2-2-01")
    )
    headers = {"TraceParent": "00-1-1-01", "X-Own": "1"}
    async with answering(answer, headers=headers) as binding:
        with pytest.raises(A2AError):
            await binding.call(BY_NAME["GetTask"], GetTaskRequest(id="t-1"), context)
    sent = [pair for pair in seen if pair[0] in ("traceparent", "x-own", "a2a-extensions")]
    assert sorted(sent) == [
        ("a2a-extensions", "urn:a, urn:b"),
        ("traceparent", "00-2-2-01"),
        ("x-own", "1"),
    ]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_extensions_of_a_callers_header_are_asked_for_over_grpc(version: str) -> None:
    uris = "urn:one", "urn:two"
    declared = card_of(extensions=tuple(AgentExtension(uri=uri) for uri in uris))
    service = Scripted()
    headers = {"a2a-EXTENSIONS": "urn:one, urn:two"}
    async with (
        serving(app_of(service, card=declared), grpc=GrpcOptions(port=0)) as url,
        connect(url, binding="GRPC", version=version, headers=headers) as remote,
    ):
        await remote.send("go")
    assert {"urn:one", "urn:two"} <= service.context.extensions
