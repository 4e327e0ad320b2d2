"""Calls that are answered once: what is sent, and what is understood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parley.client.bindings.http import HttpTransport
from parley.client.errors import (
    AuthenticationRequired,
    Disconnected,
    ResponseTooLarge,
    UnexpectedStatus,
)
from parley.client.message import compose, to_message
from parley.model.errors import (
    InvalidAgentResponseError,
    InvalidParamsError,
    OverloadedError,
    PeerError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import (
    OPERATIONS,
    GetTaskRequest,
    SendMessageConfiguration,
    TaskPushNotificationConfig,
)
from parley.model.parts import Message, Part, Role
from parley.model.service import A2AService
from parley.model.tasks import Task, TaskState, TaskStatus
from tests.kit.scripted_server import (
    ARTIFACT,
    HI,
    Agent,
    Exchange,
    card,
    error,
    hang_up,
    status,
    talk,
    task,
)

pytestmark = pytest.mark.anyio


async def test_a_message_is_answered_with_a_message_or_a_task() -> None:
    async with talk(Agent(HI, {"task": task(artifacts=[ARTIFACT])})) as (remote, server):
        reply = await remote.send("What time is it?")
        assert isinstance(reply, Message)
        assert str(reply) == reply.text == "hi"
        done = await remote.send("Write it down")
        assert isinstance(done, Task)
        assert (done.state, str(done)) == (TaskState.COMPLETED, "noted")
        call = server.exchanges[1].call
        assert call["method"] == "SendMessage"
        message = call["params"].pop("message")
        assert call["params"] == {}
        assert message.pop("messageId")
        assert message == {"role": "ROLE_USER", "parts": [{"text": "What time is it?"}]}


async def test_every_request_says_version_extensions_and_what_the_caller_adds() -> None:
    agent = Agent(HI)
    agent.extensions = (IDEMPOTENT_SEND,)
    options = {"headers": {"X-Trace": "7"}, "bearer": "secret", "extensions": ["https://x/v1"]}
    async with talk(agent, **options) as (remote, server):
        await remote.send("hello")
        headers = server.exchanges[-1].headers
        assert headers["a2a-version"] == "1.0"
        assert headers["a2a-extensions"] == f"https://x/v1, {IDEMPOTENT_SEND}"
        assert headers["content-type"] == "application/json"
        assert (headers["x-trace"], headers["authorization"]) == ("7", "Bearer secret")
        assert headers["user-agent"].startswith("parley/")
    async with talk(agent, idempotent=False) as (remote, server):
        await remote.send("hello")
        assert "a2a-extensions" not in server.exchanges[-1].headers


@pytest.mark.parametrize(
    ("scheme", "where", "expected"),
    [
        ({"location": "header", "name": "X-Key"}, "x-key", "k&y"),
        ({"location": "cookie", "name": "key"}, "cookie", "key=k&y"),
        (None, "x-api-key", "k&y"),
    ],
)
async def test_an_api_key_goes_where_the_card_wants_it(scheme, where, expected) -> None:
    schemes = {"s": {"apiKeySecurityScheme": scheme}} if scheme else {}
    async with talk(Agent(HI, securitySchemes=schemes), api_key="k&y") as (remote, server):
        await remote.send("hello")
        assert server.exchanges[-1].headers[where] == expected


async def test_an_api_key_in_the_query_is_never_shown() -> None:
    scheme = {"s": {"apiKeySecurityScheme": {"location": "query", "name": "key"}}}
    agent = Agent(HI, hang_up, securitySchemes=scheme)
    async with talk(agent, api_key="sec&ret") as (remote, server):
        await remote.send("hello")
        assert server.exchanges[-1].target == "/rpc?key=sec%26ret"
        with pytest.raises(Disconnected) as caught:
            await remote.get("t-1")
        assert "sec" not in str(caught.value)
        assert "sec" not in repr(remote.interface)


async def test_what_the_agent_refuses_is_its_typed_error() -> None:
    answers = [
        error(-32001, "no such task"),
        error(-32602, "bad", 400),
        error(-32010, "who are you?", 401),
        error(-32012, "busy", 503, retry_after="7"),
        error(418, "teapot"),
    ]
    async with talk(Agent(*answers), retries=0) as (remote, _):
        with pytest.raises(TaskNotFoundError, match="no such task"):
            await remote.get("t-1")
        with pytest.raises(InvalidParamsError):
            await remote.cancel("t-1")
        with pytest.raises(UnauthenticatedError):
            await remote.get("t-1")
        with pytest.raises(OverloadedError) as busy:
            await remote.get("t-1")
        assert busy.value.retry_after == 7.0
        with pytest.raises(PeerError) as other:
            await remote.get("t-1")
        assert other.value.code == 418


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (status(200, b"<html>hello</html>"), InvalidAgentResponseError, "answered with text/html"),
        (status(200, b""), InvalidAgentResponseError, "answered with text/html"),
        (status(500), UnexpectedStatus, "answered 500"),
        (status(404), UnexpectedStatus, "answered 404"),
        (status(302, location="https://new/rpc"), UnexpectedStatus, "points to https://new/rpc"),
        (status(401, www_authenticate="Bearer"), AuthenticationRequired, "wants credentials"),
        (status(403, b'{"detail": "no"}'), AuthenticationRequired, "rejects these credentials"),
        (error(-32000, "no token", 401), AuthenticationRequired, "wants credentials"),
    ],
)
async def test_answers_that_are_not_the_agents_are_called_what_they_are(
    answer, kind, words
) -> None:
    async with talk(Agent(answer), retries=0) as (remote, server):
        for call in (remote.get("t-1"), anext(remote.stream("go"))):
            with pytest.raises(kind, match=words):
                await call
        assert len(server.exchanges) == 3  # no redirect of a POST is followed


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc": "2.0", "id": null}',
        b'{"jsonrpc": "2.0", "id": null, "result": {"nothing": 5}}',
        b'{"jsonrpc": "2.0", "id": null, "result": []}',
        b'{"jsonrpc": "1.0", "id": null, "result": {}}',
        b'{"jsonrpc": "2.0", "id": null, "error": "no"}',
        b'{"jsonrpc": "2.0", "id": null, "result": ' + b"[" * 100_000,
        b'\xff\xfe{"jsonrpc": "2.0"}',
    ],
)
async def test_garbled_answers_are_invalid_agent_responses(body: bytes) -> None:
    async def garbled(exchange: Exchange) -> None:
        await exchange.json(body)

    async def garbled_stream(exchange: Exchange) -> None:
        await exchange.stream(b"data: " + body + b"\n\n")

    async with talk(Agent(garbled, garbled_stream)) as (remote, _):
        with pytest.raises(InvalidAgentResponseError):
            await remote.get("t-1")
        with pytest.raises(InvalidAgentResponseError):
            await anext(remote.stream("go"))


async def test_answers_larger_than_the_limit_are_refused_before_they_are_held() -> None:
    async def announced(exchange: Exchange) -> None:
        await exchange.head(content_type="application/json", content_length="1000000000")
        await exchange.never()

    async def endless(exchange: Exchange) -> None:
        await exchange.head(content_type="application/json", transfer_encoding="chunked")
        while True:
            await exchange.chunk(b" " * 65536)

    async def endless_event(exchange: Exchange) -> None:
        await exchange.open_stream()
        while True:
            await exchange.chunk(b"data: " + b"x" * 65536 + b"\n")

    async with HttpTransport(max_response=100_000) as http:
        agent = Agent(announced, endless, endless_event)
        async with talk(agent, http=http) as (remote, server):
            for _ in range(2):
                with pytest.raises(ResponseTooLarge, match="larger than 100,000 bytes"):
                    await remote.get("t-1")
            with pytest.raises(InvalidAgentResponseError):
                await anext(remote.stream("go"))
            await http.close()
            await server.until_idle()


async def test_pages_are_listed_one_by_one_or_walked_through() -> None:
    def page(token: str, *ids: str) -> dict[str, Any]:
        tasks = [task(id=id) for id in ids]
        return {"tasks": tasks, "nextPageToken": token, "pageSize": 2, "totalSize": 3}

    agent = Agent(page("two", "t-1", "t-2"))
    async with talk(agent) as (remote, server):
        first = await remote.list(context_id="c-1", status=TaskState.COMPLETED, page_size=2)
        assert (first.next_page_token, first.total_size, len(first.tasks)) == ("two", 3, 2)
        assert server.exchanges[-1].params == {
            "contextId": "c-1",
            "status": "TASK_STATE_COMPLETED",
            "pageSize": 2,
        }
        agent.answers = [page("two", "t-1", "t-2"), page("", "t-3")]
        assert [task.id async for task in remote.tasks(page_size=2)] == ["t-1", "t-2", "t-3"]
        assert server.exchanges[-1].params == {"pageSize": 2, "pageToken": "two"}
        agent.answers = [page("same", "t-1")]
        assert len([task async for task in remote.tasks()]) == 2  # a token that leads nowhere new


async def test_all_operations_of_the_table_can_be_called() -> None:
    async with talk(Agent(task())) as (remote, _):
        service: A2AService = remote.service
        for operation in OPERATIONS:
            assert getattr(service, operation.method).__name__
        got = await service.get_task(GetTaskRequest(id="t-1", tenant="other"), remote.context)
        assert got.id == "t-1"


async def test_what_the_card_does_not_declare_is_refused_before_it_is_asked() -> None:
    async with talk(Agent(task())) as (remote, server):
        with pytest.raises(UnsupportedOperationError, match="extendedAgentCard"):
            await remote.extended_card()
        push = [
            operation for operation in OPERATIONS if operation.capability == "push_notifications"
        ]
        for operation in push:
            with pytest.raises(PushNotificationNotSupportedError):
                await getattr(remote.service, operation.method)(None, remote.context)
        assert server.calls == []


async def test_the_extended_card_is_asked_for_where_there_is_one_and_replaces_the_card() -> None:
    more = {**card("http://x", IDEMPOTENT_SEND, streaming=False), "name": "More"}
    more["capabilities"]["pushNotifications"] = True
    agent = Agent(more, HI, {"configs": []}, capabilities={"extendedAgentCard": True})
    async with talk(agent, bearer="secret") as (remote, server):
        with pytest.raises(PushNotificationNotSupportedError):
            await remote.push.page("t-1")
        extended = await remote.extended_card()
        assert extended.name == "More"
        assert server.exchanges[-1].headers["authorization"] == "Bearer secret"
        assert remote.card is extended
        assert json.loads(remote.card_json)["name"] == "More"
        # What the agent can do is what the new card says.
        assert [event.text async for event in remote.stream("hi")] == ["hi"]
        assert (await remote.push.page("t-1")).configs == ()
        assert server.calls == [
            "GetExtendedAgentCard",
            "SendMessage",
            "ListTaskPushNotificationConfigs",
        ]


async def test_metadata_goes_with_the_request_or_into_the_message() -> None:
    async with talk(Agent(HI)) as (remote, server):
        await remote.send("hi", metadata={"skill": "a"}, message_metadata={"mood": "good"})
        assert server.exchanges[-1].params["metadata"] == {"skill": "a"}
        assert server.exchanges[-1].params["message"]["metadata"] == {"mood": "good"}
        await anext(remote.stream("hi", metadata={"skill": "b"}))
        assert server.exchanges[-1].params["metadata"] == {"skill": "b"}
        assert "metadata" not in server.exchanges[-1].params["message"]


async def test_a_message_can_bring_its_webhook() -> None:
    hook = TaskPushNotificationConfig(url="https://hooks.example/2", token="t")
    async with talk(Agent(HI, capabilities=PUSH)) as (remote, server):
        for push, sent in (
            ("https://hooks.example/1", {"url": "https://hooks.example/1"}),
            (hook, {"url": "https://hooks.example/2", "token": "t"}),
        ):
            await remote.send("hi", push=push)
            await anext(remote.stream("hi", push=push))
            for exchange in server.exchanges[-2:]:
                configuration = exchange.params["configuration"]
                assert configuration == {"taskPushNotificationConfig": sent}


PUSH = {"streaming": True, "pushNotifications": True}


async def test_webhooks_are_created_shown_and_deleted() -> None:
    kept = {"id": "p-1", "taskId": "t-1", "url": "https://hooks.example/1"}
    async with talk(Agent(kept, kept, {}, capabilities=PUSH)) as (remote, server):
        made = await remote.push.create("t-1", "https://hooks.example/1")
        assert (made.id, made.task_id, made.url) == ("p-1", "t-1", "https://hooks.example/1")
        assert await remote.push.get("t-1", "p-1") == made
        assert await remote.push.delete("t-1", "p-1") is None
        assert [exchange.params for exchange in server.exchanges[1:]] == [
            {"taskId": "t-1", "url": "https://hooks.example/1"},
            {"taskId": "t-1", "id": "p-1"},
            {"taskId": "t-1", "id": "p-1"},
        ]


async def test_webhooks_are_listed_page_after_page() -> None:
    def page(token: str, *ids: str) -> dict[str, Any]:
        configs = [{"id": id, "taskId": "t-1", "url": "https://hooks.example"} for id in ids]
        return {"configs": configs, "nextPageToken": token}

    agent = Agent(page("two", "a", "b"), page("", "c"), capabilities=PUSH)
    async with talk(agent) as (remote, server):
        assert [config.id async for config in remote.push.list("t-1", page_size=2)] == list("abc")
        assert [exchange.params for exchange in server.exchanges[1:]] == [
            {"taskId": "t-1", "pageSize": 2},
            {"taskId": "t-1", "pageSize": 2, "pageToken": "two"},
        ]
        agent.answers = [page("same", "a")]
        assert len([config async for config in remote.push.list("t-1")]) == 2


NOT_AT_WORK = error(-32001, "task not found: no active execution")
"""What the official Go SDK's server says of a task that it knows and is not working on."""


@pytest.mark.parametrize("refusal", [NOT_AT_WORK, error(-32004, "the task has ended")])
async def test_a_task_that_ends_before_it_is_subscribed_to_is_waited_for(refusal: Any) -> None:
    done = task(artifacts=[ARTIFACT])
    async with talk(Agent(task("WORKING"), refusal, done)) as (remote, server):
        waited = await remote.wait("t-1")
        assert (waited.state, waited.text) == (TaskState.COMPLETED, "noted")
        assert server.calls[:2] == ["GetTask", "SubscribeToTask"]


async def test_a_subscription_tells_what_there_is_of_a_task_that_is_not_worked_on() -> None:
    async with talk(Agent(NOT_AT_WORK, task("INPUT_REQUIRED"))) as (remote, _):
        [event] = [event async for event in remote.subscribe("t-1")]
        assert isinstance(event, Task)
        assert event.state is TaskState.INPUT_REQUIRED
    async with talk(Agent(NOT_AT_WORK, task("COMPLETED"))) as (remote, _):
        with pytest.raises(UnsupportedOperationError, match="the task has ended"):
            await anext(remote.subscribe("t-1"))


async def test_a_task_that_is_gone_is_not_waited_for() -> None:
    gone = error(-32001, "no such task")
    async with talk(Agent(task("WORKING"), gone)) as (remote, _):
        with pytest.raises(TaskNotFoundError):
            await remote.wait("t-1")
        with pytest.raises(TaskNotFoundError):
            await anext(remote.subscribe("t-1"))


# -- from what a caller has in hand to a message ---------------------------------------------------


def task_in(state: TaskState) -> Task:
    return Task(id="t-1", context_id="c-1", status=TaskStatus(state=state))


def test_a_text_becomes_a_message_of_the_user_with_an_id_of_its_own() -> None:
    first, second = to_message("hello"), to_message("hello")
    assert first.parts == (Part(text="hello"),)
    assert first.role is Role.USER
    assert first.message_id != second.message_id
    assert (first.task_id, first.context_id, first.metadata) == ("", "", None)


def test_everything_becomes_the_part_that_it_is_in_order(tmp_path: Path) -> None:
    picture = tmp_path / "boat.png"
    picture.write_bytes(b"\x89PNG")
    strange = tmp_path / "boat.unknown-suffix"
    strange.write_bytes(b"?")
    message = to_message(
        ["look", picture, b"raw", {"a": None}, Part(url="https://x/y")],
        files=[str(picture), strange, b"more"],
        data=[1, 2],
    )
    png = Part(raw=b"\x89PNG", filename="boat.png", media_type="image/png")
    raw = {"media_type": "application/octet-stream"}
    assert message.parts == (
        Part(text="look"),
        png,
        Part(raw=b"raw", **raw),
        Part(data={"a": None}),
        Part(url="https://x/y"),
        png,
        Part(raw=b"?", filename="boat.unknown-suffix", **raw),
        Part(raw=b"more", **raw),
        Part(data=[1, 2]),
    )


def test_no_text_is_needed_beside_files_or_data() -> None:
    assert to_message(None, data=None).parts == (Part(data=None),)
    assert to_message("", data=0).parts == (Part(data=0),)


def test_nothing_and_the_impossible_cannot_be_sent(tmp_path: Path) -> None:
    for nothing in (None, "", []):
        with pytest.raises(ValueError, match="nothing to send"):
            to_message(nothing)
    with pytest.raises(TypeError, match="a set cannot be sent"):
        to_message({1, 2})
    for lost in ({"data": [float("nan")]}, {"metadata": {"a": {"b": float("-inf")}}}):
        with pytest.raises(ValueError, match="JSON has no"):
            to_message("x", **lost)
    with pytest.raises(FileNotFoundError):
        to_message(tmp_path / "missing")


def test_a_running_task_is_continued_and_an_ended_one_is_referred_to() -> None:
    message = to_message("Paris", task=task_in(TaskState.INPUT_REQUIRED))
    assert (message.task_id, message.context_id) == ("t-1", "c-1")
    assert message.reference_task_ids == ()
    message = to_message("make it red", task=task_in(TaskState.COMPLETED), references=["t-0"])
    assert (message.task_id, message.context_id) == ("", "c-1")
    assert message.reference_task_ids == ("t-1", "t-0")
    message = to_message("see", references=[task_in(TaskState.WORKING), "t-2"])
    assert message.reference_task_ids == ("t-1", "t-2")


def test_a_ready_message_is_sent_as_it_is_and_completed_by_what_is_given_beside() -> None:
    ready = Message(message_id="m-1", role=Role.USER, parts=(Part(text="x"),), context_id="c-0")
    assert to_message(ready) == ready
    changed = to_message(ready, context_id="c-1", metadata={"skill": "s"}, data=5)
    assert changed == msgspec.structs.replace(
        ready, context_id="c-1", metadata={"skill": "s"}, parts=(Part(text="x"), Part(data=5))
    )


@pytest.mark.anyio
async def test_only_what_was_asked_for_is_configured() -> None:
    bare = await compose("x")
    assert (bare.configuration, bare.metadata, bare.message.metadata) == (None, None, None)
    asked = await compose(
        "x",
        history_length=0,
        accepted_output_modes=["image/png"],
        push="https://hooks.example/1",
        metadata={"of": "request"},
        message_metadata={"of": "message"},
    )
    assert asked.configuration == SendMessageConfiguration(
        history_length=0,
        accepted_output_modes=("image/png",),
        task_push_notification_config=TaskPushNotificationConfig(url="https://hooks.example/1"),
    )
    assert (asked.metadata, asked.message.metadata) == ({"of": "request"}, {"of": "message"})
    with pytest.raises(ValueError, match="JSON has no nan"):
        await compose("x", metadata={"a": [float("nan")]})


@pytest.mark.anyio
async def test_files_are_read_beside_the_event_loop(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a")
    part = Part(raw=b"a", filename="a.txt", media_type="text/plain")
    for content, files in ((file, []), (["x", file], []), ("x", [str(file)]), (None, [file])):
        assert (await compose(content, files=files)).message.parts[-1] == part
