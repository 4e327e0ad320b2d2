"""Calls over HTTP+JSON: what is sent, and what is understood."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from parley.client import connect
from parley.client.bindings.http import HttpTransport
from parley.client.bindings.http_json import HttpJsonClientBinding
from parley.client.errors import AuthenticationRequired, UnexpectedStatus
from parley.model.errors import (
    InvalidAgentResponseError,
    InvalidParamsError,
    OverloadedError,
    PeerError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from parley.model.extensions import method
from parley.model.operations import (
    BY_NAME,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    Empty,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext, TraceContext
from parley.model.struct import Timestamp
from parley.model.tasks import Task, TaskState
from parley.server.run import serving
from parley.wire import versions
from tests.kit.scripted import Scripted, app_of
from tests.kit.scripted_server import HI, Exchange, ScriptedServer, scripted, task

pytestmark = pytest.mark.anyio

MESSAGE = Message(message_id="m-1", role=Role.USER, parts=(Part(text="hi"),))
SEND = SendMessageRequest(message=MESSAGE)
CONTEXT = CallContext()
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


def refusal(status: int, name: str, reason: str = "", message: str = "no", **more: Any) -> Any:
    details = [{"@type": ERROR_INFO, "reason": reason, "domain": "a2a-protocol.org"}]
    body = {"code": status, "status": name, "message": message}
    return {"error": {**body, "details": details if reason else [], **more}}


@asynccontextmanager
async def bound(
    handler: Any, *, path: str = "", version: str = "1.0", headers: Mapping[str, str] = {}
) -> AsyncIterator[tuple[HttpJsonClientBinding, ScriptedServer]]:
    async with scripted(handler) as server, HttpTransport() as http:
        binding = HttpJsonClientBinding(
            http,
            server.url + path,
            dialect=versions.dialect(version),
            headers=headers,
            timeout=5.0,
            idle=5.0,
            numbered=True,
        )
        yield binding, server


def answering(value: Any, status: int = 200, **headers: str) -> Any:
    async def answer(exchange: Exchange) -> None:
        await exchange.json(value, status, **headers)

    return answer


def streaming(*events: Any) -> Any:
    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        for seq, event in enumerate(events, 1):
            await exchange.chunk(b"id: %d\ndata: %b\n\n" % (seq, json.dumps(event).encode()))
        await exchange.end_stream()

    return answer


# What is sent

TASK_REQUESTS = [
    ("GetTask", GetTaskRequest(id="a/b:c", history_length=0), "GET /tasks/a%2Fb:c?historyLength=0"),
    ("GetTask", GetTaskRequest(id="ü", tenant="x y"), "GET /x%20y/tasks/%C3%BC"),
    ("ListTasks", ListTasksRequest(), "GET /tasks"),
    (
        "ListTasks",
        ListTasksRequest(
            context_id="c&1",
            status=TaskState.WORKING,
            page_size=5,
            include_artifacts=True,
            status_timestamp_after=Timestamp.parse("2026-01-31T12:00:00Z"),
        ),
        "GET /tasks?contextId=c%261&status=TASK_STATE_WORKING&pageSize=5"
        "&statusTimestampAfter=2026-01-31T12:00:00.000Z&includeArtifacts=true",
    ),
    (
        "CancelTask",
        CancelTaskRequest(id="t", metadata={"a": 1}),
        'POST /tasks/t:cancel {"metadata":{"a":1}}',
    ),
    ("CancelTask", CancelTaskRequest(id="t", tenant="a"), "POST /a/tasks/t:cancel {}"),
    (
        "CreateTaskPushNotificationConfig",
        TaskPushNotificationConfig(task_id="t", url="https://h"),
        'POST /tasks/t/pushNotificationConfigs {"url":"https://h"}',
    ),
    (
        "GetTaskPushNotificationConfig",
        GetTaskPushNotificationConfigRequest(task_id="t", id="p"),
        "GET /tasks/t/pushNotificationConfigs/p",
    ),
    (
        "ListTaskPushNotificationConfigs",
        ListTaskPushNotificationConfigsRequest(task_id="t", page_size=2, page_token="n"),
        "GET /tasks/t/pushNotificationConfigs?pageSize=2&pageToken=n",
    ),
    (
        "DeleteTaskPushNotificationConfig",
        DeleteTaskPushNotificationConfigRequest(task_id="t", id="p"),
        "DELETE /tasks/t/pushNotificationConfigs/p",
    ),
    ("GetExtendedAgentCard", GetExtendedAgentCardRequest(tenant="a"), "GET /a/extendedAgentCard"),
]


def shown(exchange: Exchange) -> str:
    # A colon may be quoted or not; both mean the same.
    target = exchange.target.replace("%3A", ":")
    return f"{exchange.method} {target} {exchange.body.decode()}".strip()


@pytest.mark.parametrize(("name", "request_", "expected"), TASK_REQUESTS)
async def test_a_request_is_a_verb_a_path_a_query_and_a_body(
    name: str, request_: Any, expected: str
) -> None:
    async with bound(answering(refusal(400, "INVALID_ARGUMENT"), 400)) as (binding, server):
        with pytest.raises(InvalidParamsError):
            await binding.call(BY_NAME[name], request_, CONTEXT)
        assert shown(server.exchanges[0]) == expected


async def test_a_message_goes_out_as_the_type_of_the_protocol() -> None:
    context = CallContext(
        extensions=frozenset({"https://x/v1"}), trace=TraceContext(traceparent="00-1")
    )
    async with bound(answering(HI), headers={"X-Key": "k"}) as (binding, server):
        answer = await binding.call(BY_NAME["SendMessage"], SEND, context)
    assert answer.text == "hi"
    exchange = server.exchanges[0]
    assert (exchange.method, exchange.target) == ("POST", "/message:send")
    assert json.loads(exchange.body)["message"]["parts"] == [{"text": "hi"}]
    headers = exchange.headers
    assert headers["content-type"] == "application/a2a+json"
    assert headers["accept"] == "application/a2a+json, application/json"
    assert headers["a2a-version"] == "1.0"
    assert headers["a2a-extensions"] == "https://x/v1"
    assert (headers["traceparent"], headers["x-key"]) == ("00-1", "k")


async def test_the_tenant_is_in_the_path_alone() -> None:
    request = SendMessageRequest(message=MESSAGE, tenant="acme")
    async with bound(answering(HI)) as (binding, server):
        await binding.call(BY_NAME["SendMessage"], request, CONTEXT)
    assert server.exchanges[0].target == "/acme/message:send"
    assert set(json.loads(server.exchanges[0].body)) == {"message"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/tasks/t?historyLength=1"),
        ("/agents/a/", "/agents/a/tasks/t?historyLength=1"),
        ("/a?key=s%26t", "/a/tasks/t?key=s%26t&historyLength=1"),
        ("/a/?key=s#top", "/a/tasks/t?key=s&historyLength=1"),
    ],
)
async def test_paths_are_added_to_the_address_and_its_query_is_kept(
    path: str, expected: str
) -> None:
    async with bound(answering(task()), path=path) as (binding, server):
        await binding.call(BY_NAME["GetTask"], GetTaskRequest(id="t", history_length=1), CONTEXT)
    assert server.exchanges[0].target == expected


async def test_a_request_without_a_body_has_no_type_for_it() -> None:
    async with bound(answering(task())) as (binding, server):
        await binding.call(BY_NAME["GetTask"], GetTaskRequest(id="t"), CONTEXT)
    assert "content-type" not in server.exchanges[0].headers


@pytest.mark.parametrize("id", [".", ".."])
async def test_an_id_that_a_path_cannot_carry_is_not_sent(id: str) -> None:
    async with bound(answering(task())) as (binding, server):
        with pytest.raises(InvalidParamsError, match="cannot be part of a path"):
            await binding.call(BY_NAME["GetTask"], GetTaskRequest(id=id), CONTEXT)
        assert server.exchanges == []


async def test_a_method_of_an_extension_is_called_at_its_path() -> None:
    async def handle(service: Any, request: Any, context: Any) -> Any: ...

    count = method("urn:x", "count", GetTaskRequest, Task, handle, path="/counts/{id}", verb="GET")
    async with bound(answering(task())) as (binding, server):
        answer = await binding.call(count.operation, GetTaskRequest(id="c"), CONTEXT)
    assert answer.id == "t-1"
    assert server.exchanges[0].target == "/counts/c"


# What is understood


async def test_nothing_is_the_answer_to_a_deletion() -> None:
    request = DeleteTaskPushNotificationConfigRequest(task_id="t", id="p")

    async def nothing(exchange: Exchange) -> None:
        await exchange.head(204)

    for handler in (nothing, answering({}), answering({"more": 1})):
        async with bound(handler) as (binding, _):
            answer = await binding.call(
                BY_NAME["DeleteTaskPushNotificationConfig"], request, CONTEXT
            )
            assert answer == Empty()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, refusal(404, "NOT_FOUND", "TASK_NOT_FOUND"), TaskNotFoundError),
        (400, refusal(400, "X", "UNSUPPORTED_OPERATION"), UnsupportedOperationError),
        # The reason decides, whatever an older table made of it.
        (409, refusal(409, "ABORTED", "TASK_NOT_CANCELABLE"), TaskNotCancelableError),
        (501, refusal(501, "UNIMPLEMENTED", "UNSUPPORTED_OPERATION"), UnsupportedOperationError),
        # Without a reason the status does.
        (404, refusal(404, "NOT_FOUND"), TaskNotFoundError),
        (409, refusal(409, "ABORTED"), TaskNotCancelableError),
        (400, refusal(400, "INVALID_ARGUMENT"), InvalidParamsError),
        (400, refusal(400, "FAILED_PRECONDITION"), UnsupportedOperationError),
        (503, {"error": {"message": "no"}}, OverloadedError),
        (401, refusal(401, "UNAUTHENTICATED"), UnauthenticatedError),
        (418, refusal(418, "TEA"), PeerError),
    ],
)
async def test_a_refusal_is_the_error_that_it_means(status: int, body: Any, kind: type) -> None:
    async with bound(answering(body, status)) as (binding, _):
        with pytest.raises(kind, match="no") as raised:
            await binding.call(BY_NAME["GetTask"], GetTaskRequest(id="t"), CONTEXT)
    assert type(raised.value) is kind


async def test_a_refusal_keeps_its_details() -> None:
    bad = {
        "@type": "type.googleapis.com/google.rpc.BadRequest",
        "fieldViolations": [{"field": "pageSize", "description": "too large"}],
    }
    body = refusal(400, "INVALID_ARGUMENT", message="wrong", details=[bad])
    async with bound(answering(body, 400, Retry_After="7")) as (binding, _):
        with pytest.raises(InvalidParamsError) as raised:
            await binding.call(BY_NAME["ListTasks"], ListTasksRequest(), CONTEXT)
    assert raised.value.violations == (("pageSize", "too large"),)
    assert raised.value.retry_after == 7


@pytest.mark.parametrize(
    "body", [b"<html>", b"", b'{"detail":"Not Found"}', b"[]", b'{"error":"x"}']
)
async def test_a_refusal_that_is_no_agents_is_an_unexpected_status(body: bytes) -> None:
    async with bound(answering(body, 404)) as (binding, _):
        with pytest.raises(UnexpectedStatus) as raised:
            await binding.call(BY_NAME["GetTask"], GetTaskRequest(id="t"), CONTEXT)
    assert raised.value.status == 404


async def test_a_gate_that_wants_credentials_is_told_as_such() -> None:
    handler = answering(b"<html>", 401, WWW_Authenticate="Bearer")
    async with bound(handler) as (binding, _):
        with pytest.raises(AuthenticationRequired) as raised:
            await binding.call(BY_NAME["GetTask"], GetTaskRequest(id="t"), CONTEXT)
    assert (raised.value.status, raised.value.challenge) == (401, "Bearer")


async def test_a_redirect_is_not_followed_with_credentials() -> None:
    async with bound(answering({}, 307, Location="http://elsewhere.example/x")) as (
        binding,
        server,
    ):
        with pytest.raises(UnexpectedStatus, match=r"points to http://elsewhere\.example/x"):
            await binding.call(BY_NAME["GetTask"], GetTaskRequest(id="t"), CONTEXT)
        assert len(server.exchanges) == 1


async def test_an_answer_that_is_wrong_is_told_as_such() -> None:
    async with bound(answering({"nothing": 7})) as (binding, _):
        with pytest.raises(InvalidAgentResponseError, match="GetTask is not a Task"):
            await binding.call(BY_NAME["GetTask"], GetTaskRequest(id="t"), CONTEXT)

    async def page(exchange: Exchange) -> None:
        await exchange.body_of(b"<html>", content_type="text/html")

    async with bound(page) as (binding, _):
        with pytest.raises(InvalidAgentResponseError, match="answered with text/html"):
            await binding.call(BY_NAME["GetTask"], GetTaskRequest(id="t"), CONTEXT)


# Streams


async def events(binding: HttpJsonClientBinding, name: str, request: Any) -> list[Any]:
    return [item async for item in binding.stream(BY_NAME[name], request, CONTEXT)]


async def test_a_stream_is_its_events_with_their_numbers() -> None:
    async with bound(streaming({"task": task("WORKING")}, HI)) as (binding, server):
        items = await events(binding, "SendStreamingMessage", SEND)
    assert [item.seq for item in items] == [1, 2]
    assert items[1].event.text == "hi"
    accept = server.exchanges[0].headers["accept"]
    assert accept == "text/event-stream, application/a2a+json, application/json"


async def test_an_error_in_a_stream_is_raised_where_it_stands() -> None:
    broken = refusal(404, "NOT_FOUND", "TASK_NOT_FOUND", "gone")
    async with bound(streaming({"task": task("WORKING")}, broken)) as (binding, _):
        stream: Any = binding.stream(BY_NAME["SendStreamingMessage"], SEND, CONTEXT)
        assert (await anext(stream)).event.id == "t-1"
        with pytest.raises(TaskNotFoundError, match="gone"):
            await anext(stream)


async def test_a_plain_answer_to_a_stream_is_its_only_event() -> None:
    async with bound(answering(HI)) as (binding, _):
        items = await events(binding, "SendStreamingMessage", SEND)
    assert [item.event.text for item in items] == ["hi"]


SUBSCRIBE = SubscribeToTaskRequest(id="t")


@pytest.mark.parametrize("refused", [404, 405])
async def test_a_subscription_that_is_not_taken_by_post_is_tried_by_get_and_remembered(
    refused: int,
) -> None:
    async def only_get(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await streaming({"task": task("WORKING")})(exchange)
        else:
            await exchange.body_of(b"<html>", refused, content_type="text/html")

    async with bound(only_get) as (binding, server):
        for _ in range(2):
            assert len(await events(binding, "SubscribeToTask", SUBSCRIBE)) == 1
        assert [e.method for e in server.exchanges] == ["POST", "GET", "GET"]
        assert {e.target.replace("%3A", ":") for e in server.exchanges} == {"/tasks/t:subscribe"}


async def test_a_subscription_to_a_task_that_is_not_there_is_not_tried_again() -> None:
    body = refusal(404, "NOT_FOUND", "TASK_NOT_FOUND")
    async with bound(answering(body, 404)) as (binding, server):
        with pytest.raises(TaskNotFoundError):
            await events(binding, "SubscribeToTask", SUBSCRIBE)
        assert len(server.exchanges) == 1


async def test_a_subscription_that_is_taken_neither_way_is_refused() -> None:
    async with bound(answering(b"<html>", 404)) as (binding, server):
        with pytest.raises(UnexpectedStatus):
            await events(binding, "SubscribeToTask", SUBSCRIBE)
        assert [e.method for e in server.exchanges] == ["POST", "GET"]


async def test_a_message_is_never_sent_twice_for_a_verb() -> None:
    async with bound(answering(b"<html>", 404)) as (binding, server):
        with pytest.raises(UnexpectedStatus):
            await events(binding, "SendStreamingMessage", SEND)
        assert len(server.exchanges) == 1


async def test_a_stream_that_is_left_gives_up_its_connection() -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.chunk(b'data: {"task":%b}\n\n' % json.dumps(task("WORKING")).encode())
        await exchange.never()

    async with bound(endless) as (binding, server):
        for name, request in (("SendStreamingMessage", SEND), ("SubscribeToTask", SUBSCRIBE)):
            stream: Any = binding.stream(BY_NAME[name], request, CONTEXT)
            await anext(stream)
            await stream.aclose()
            await server.until_idle()


# Against our own server


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_our_server_and_our_client_understand_each_other(version: str) -> None:
    service = Scripted()
    async with (
        serving(app_of(service)) as url,
        connect(url, binding="HTTP+JSON", version=version) as agent,
    ):
        reply = await agent.send("What time is it?")
        assert str(reply) == "It is noon."
        assert (await agent.get("a/b")).id == "t-1"
        with pytest.raises(InvalidParamsError):
            await agent.get("..")
    assert service.asked[1].request.id == "a/b"
    assert {asked.context.version for asked in service.asked} == {version}
