"""Calls over HTTP+JSON: requests and responses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from parley.client.bindings.http import HttpTransport
from parley.client.bindings.http_json import HttpJsonClientBinding
from parley.client.errors import AuthenticationRequired, UnexpectedStatus
from parley.model.errors import InvalidParamsError
from parley.model.operations import (
    BY_NAME,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext, TraceContext
from parley.wire import versions
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


# Requests


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


# Responses


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


# Streams


async def events(binding: HttpJsonClientBinding, name: str, request: Any) -> list[Any]:
    return [item async for item in binding.stream(BY_NAME[name], request, CONTEXT)]


SUBSCRIBE = SubscribeToTaskRequest(id="t")


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
