"""Calls that are answered once: what is sent, what is understood, what is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from parley.client import RemoteAgent, connect
from parley.client.errors import (
    AuthenticationRequired,
    Disconnected,
    NoCommonInterface,
    ResponseTooLarge,
    Timeout,
    UnexpectedStatus,
    Unreachable,
)
from parley.client.http import HttpTransport
from parley.client.retry import Retry
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
from parley.model.operations import OPERATIONS
from parley.model.parts import Message
from parley.model.requests import GetTaskRequest
from parley.model.service import A2AService
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState

from .scripted_server import Exchange, ScriptedServer, card, scripted

pytestmark = pytest.mark.anyio

AT_ONCE = Retry(calls=3, streams=6, first=0.0, limit=0.0)
HI = {"message": {"messageId": "r", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}


def task(state: str = "COMPLETED", id: str = "t-1", **more: Any) -> dict[str, Any]:
    return {"id": id, "contextId": "c-1", "status": {"state": f"TASK_STATE_{state}"}, **more}


class Agent:
    """Answers the n-th call with the n-th of ``answers``, and the last one from then on."""

    def __init__(self, *answers: Any, **card_members: Any) -> None:
        self.answers = list(answers)
        self.extensions: tuple[str, ...] = ()
        self.card_members = card_members

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "GET":
            value = card(f"http://{exchange.headers['host']}", *self.extensions)
            await exchange.json({**value, **self.card_members})
            return
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            await answer(exchange)
        else:
            await exchange.result(answer)


def status(code: int, body: bytes = b"<html>", **headers: str):
    async def answer(exchange: Exchange) -> None:
        await exchange.body_of(body, code, **{"content_type": "text/html", **headers})

    return answer


def error(code: int, message: str, http: int = 200, **headers: str):
    async def answer(exchange: Exchange) -> None:
        await exchange.error(code, message, http, **headers)

    return answer


async def hang_up(exchange: Exchange) -> None:
    exchange.hang_up()


async def reset(exchange: Exchange) -> None:
    exchange.reset()


async def never(exchange: Exchange) -> None:
    await exchange.never()


@asynccontextmanager
async def talk(agent: Agent, **options: Any) -> AsyncIterator[tuple[RemoteAgent, ScriptedServer]]:
    """A scripted agent and a connection to it."""
    async with scripted(agent) as server:
        # With a short time for calls, the card is given, or fetching it might take too long.
        reference = card(server.url) if "timeout" in options else server.url
        async with connect(reference, **{"retries": AT_ONCE, **options}) as remote:
            yield remote, server


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


ARTIFACT = {"artifactId": "a", "parts": [{"text": "noted"}]}


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


async def test_the_first_interface_that_is_spoken_is_called_with_its_tenant() -> None:
    def offer(binding: str, version: str, path: str, **more: str) -> dict[str, str]:
        return {"url": path, "protocolBinding": binding, "protocolVersion": version, **more}

    offers = [
        offer("GRPC", "1.0", "agent.example:443"),
        offer("JSONRPC", "0.3", "/old"),
        offer("jsonrpc", "1.1", "/one", tenant="acme"),
        offer("JSONRPC", "1.0", "/two"),
    ]
    async with talk(Agent(task(), supportedInterfaces=offers)) as (remote, server):
        await remote.get("t-1")
        assert remote.interface.tenant == "acme"
        assert server.exchanges[-1].path == "/one"
        assert server.exchanges[-1].params == {"tenant": "acme", "id": "t-1"}
    with pytest.raises(NoCommonInterface, match=r"offers GRPC 1\.0, JSONRPC 0\.3; .*JSONRPC 1\.0"):
        await connect({**card("http://x"), "supportedInterfaces": offers[:2]})


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
        (status(403, b'{"detail": "no"}'), AuthenticationRequired, "refuses these credentials"),
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
        b'{"jsonrpc": "2.0", "id": 1}',
        b'{"jsonrpc": "2.0", "id": 1, "result": {"id": 5}}',
        b'{"jsonrpc": "2.0", "id": 1, "result": []}',
        b'{"jsonrpc": "1.0", "id": 1, "result": {}}',
        b'{"jsonrpc": "2.0", "id": 1, "error": "no"}',
        b'{"jsonrpc": "2.0", "id": 1, "result": ' + b"[" * 100_000,
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


@pytest.mark.parametrize("failure", [status(502), status(503), status(429), hang_up, reset])
async def test_safe_operations_are_repeated_after_passing_failures(failure) -> None:
    async with talk(Agent(failure, failure, failure, task())) as (remote, server):
        assert (await remote.get("t-1")).id == "t-1"
        assert server.calls == ["GetTask"] * 4
    async with talk(Agent(failure)) as (remote, server):
        with pytest.raises((UnexpectedStatus, Disconnected)):
            await remote.get("t-1")
        assert server.calls == ["GetTask"] * 4


@pytest.mark.parametrize("failure", [status(500), status(400), error(-32603, "broken")])
async def test_lasting_failures_are_not_repeated(failure) -> None:
    async with talk(Agent(failure)) as (remote, server):
        with pytest.raises(Exception, match=r"answered|broken"):
            await remote.get("t-1")
        assert server.calls == ["GetTask"]


async def test_a_wish_to_be_left_alone_for_long_is_told_and_not_waited_for() -> None:
    async with talk(Agent(status(503, retry_after="3600"))) as (remote, server):
        with pytest.raises(UnexpectedStatus) as caught:
            await remote.get("t-1")
        assert caught.value.retry_after == 3600
        assert server.calls == ["GetTask"]


@pytest.mark.parametrize("failure", [status(503), hang_up, reset])
async def test_messages_and_cancellations_are_not_repeated_by_chance(failure) -> None:
    async with talk(Agent(failure)) as (remote, server):
        for call in (remote.send("go"), remote.cancel("t-1")):
            with pytest.raises((UnexpectedStatus, Disconnected)):
                await call
        assert server.calls == ["SendMessage", "CancelTask"]


@pytest.mark.parametrize("failure", [status(503), hang_up, reset])
async def test_messages_are_repeated_under_their_id_where_repeats_are_answered_once(
    failure,
) -> None:
    agent = Agent(failure, failure, failure, failure, HI)
    agent.extensions = (IDEMPOTENT_SEND,)
    async with talk(agent) as (remote, server):
        assert str(await remote.send("go")) == "hi"
        sent = [exchange.body for exchange in server.exchanges[1:]]
        ids = {exchange.params["message"]["messageId"] for exchange in server.exchanges[1:]}
        assert (len(sent), len(ids)) == (5, 1)
    agent.answers = [failure]
    async with talk(agent, idempotent=False) as (remote, server):
        with pytest.raises((UnexpectedStatus, Disconnected)):
            await remote.send("go")
        assert server.calls == ["SendMessage"]


async def test_a_message_that_never_left_is_sent_again() -> None:
    """The agent's port opens only after the first tries."""
    async with scripted(Agent(HI)) as server:
        address = server.url
    patient = Retry(calls=500, first=0.005, limit=0.01)
    async with connect(card(address), retries=patient) as remote:
        sending = asyncio.create_task(remote.send("go"))
        await asyncio.sleep(0)
        async with scripted(Agent(HI), port=int(address.rpartition(":")[2])) as server:
            assert str(await sending) == "hi"
            assert server.calls == ["SendMessage"]


async def test_an_agent_that_is_not_there_is_unreachable() -> None:
    async with scripted(Agent(HI)) as server:
        address = server.url
    async with connect(card(address), retries=AT_ONCE) as remote:
        with pytest.raises(Unreachable, match="cannot connect to http://127"):
            await remote.send("go")
    with pytest.raises(Unreachable):
        await connect(address, retries=0)


async def test_a_call_that_takes_too_long_is_given_up_with_its_connection() -> None:
    async with talk(Agent(never), timeout=0.1) as (remote, server):
        with pytest.raises(Timeout, match="did not answer in time"):
            await remote.get("t-1")
        await server.until_idle()


async def test_a_message_may_take_longer_than_other_calls_but_not_than_its_caller_says() -> None:
    async with talk(Agent(never), timeout=0.05) as (remote, server):
        with pytest.raises(Timeout, match=r"no answer within 0\.2 s"):
            await remote.send("go", timeout=0.2)
        with pytest.raises(Timeout, match=r"task t-1 did not end") as caught:
            await remote.send("go on", task_id="t-1", timeout=0.2)
        assert caught.value.task_id == "t-1"
        with pytest.raises(Timeout, match="did not answer in time"):
            await remote.send("go", return_immediately=True)
        await server.until_idle()


async def test_cancelling_a_call_gives_up_its_connection() -> None:
    async with talk(Agent(never)) as (remote, server):
        sending = asyncio.create_task(remote.send("go"))
        await server.until_asked(2)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await server.until_idle()


async def test_an_unfinished_answer_to_a_message_is_waited_for() -> None:
    answers = [
        {"task": task("WORKING")},
        task("WORKING"),
        error(-32004, "no streams today"),
        task("WORKING"),
        error(-32004, "no streams today"),
        task("COMPLETED"),
    ]
    async with talk(Agent(*answers)) as (remote, server):
        done = await remote.send("go", history_length=3)
        assert done.state is TaskState.COMPLETED
        assert server.exchanges[1].params["configuration"] == {"historyLength": 3}
        assert server.exchanges[2].params == {"id": "t-1", "historyLength": 3}
        assert server.calls == [
            "SendMessage",
            "GetTask",
            "SubscribeToTask",
            "GetTask",
            "SubscribeToTask",
            "GetTask",
        ]


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "INPUT_REQUIRED", "AUTH_REQUIRED"])
async def test_an_answer_that_is_settled_or_wanted_at_once_is_not_waited_for(state: str) -> None:
    async with talk(Agent({"task": task(state)}, {"task": task("WORKING")})) as (remote, server):
        assert (await remote.send("go")).state.value == f"TASK_STATE_{state}"
        task_ = await remote.send("go", return_immediately=True)
        assert task_.state is TaskState.WORKING
        assert server.exchanges[-1].params["configuration"] == {"returnImmediately": True}
        assert server.calls == ["SendMessage"] * 2


async def test_waiting_prefers_the_stream_of_the_task() -> None:
    async def streamed(exchange: Exchange) -> None:
        update = {"statusUpdate": {**task("COMPLETED"), "taskId": "t-1"}}
        del update["statusUpdate"]["id"]
        frames = [exchange.frame({"task": task("WORKING")}), exchange.frame(update)]
        await exchange.stream(b"".join(frames))

    agent = Agent(task("WORKING"), streamed, task("COMPLETED", artifacts=[ARTIFACT]))
    async with talk(agent) as (remote, server):
        assert (await remote.wait("t-1")).text == "noted"
        assert server.calls == ["GetTask", "SubscribeToTask", "GetTask"]


async def test_waiting_by_polling_asks_only_for_the_task_and_ends_in_time() -> None:
    agent = Agent(task("WORKING"), task("WORKING"), task("COMPLETED"))
    async with talk(agent) as (remote, server):
        assert (await remote.wait("t-1", poll=0.01)).state is TaskState.COMPLETED
        assert server.calls == ["GetTask"] * 3
        agent.answers = [task("UNSPECIFIED")]
        with pytest.raises(Timeout, match=r"task t-1 did not end within 0\.1 s") as caught:
            await remote.wait("t-1", poll=0.01, timeout=0.1)
        assert caught.value.task_id == "t-1"


async def test_an_agent_that_does_not_stream_is_asked_again_and_again() -> None:
    def at(state: str, *texts: str) -> dict[str, Any]:
        parts = [{"text": text} for text in texts]
        artifacts = [{"artifactId": "a", "parts": parts}] if texts else []
        return task(state, artifacts=artifacts)

    agent = Agent(
        {"task": at("SUBMITTED")},
        at("WORKING", "one "),
        at("WORKING", "one "),
        at("WORKING", "one ", "two "),
        at("COMPLETED", "one ", "two ", "three"),
        capabilities={},
    )
    async with talk(agent) as (remote, server):
        events = [event async for event in remote.stream("go")]
        assert [type(event).__name__.removesuffix("UpdateEvent") for event in events] == [
            "Task",
            "TaskArtifact",
            "TaskStatus",
            "TaskArtifact",
            "TaskArtifact",
            "TaskStatus",
        ]
        texts = [e.artifact.text for e in events if isinstance(e, TaskArtifactUpdateEvent)]
        assert texts == ["one ", "two ", "three"]
        assert server.calls == ["SendMessage", *["GetTask"] * 4]
        agent.answers = [{"task": at("COMPLETED", "more")}]
        events = [event async for event in remote.stream("go on", task_id="t-1")]
        assert [event.text for event in events] == ["more"]
        assert "configuration" not in server.exchanges[-1].params
        with pytest.raises(UnsupportedOperationError, match=r"capabilities\.streaming"):
            await anext(remote.subscribe("t-1"))


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


async def test_the_extended_card_is_asked_for_where_there_is_one() -> None:
    agent = Agent({**card("http://x"), "name": "More"}, capabilities={"extendedAgentCard": True})
    async with talk(agent) as (remote, server):
        assert (await remote.extended_card()).name == "More"
        assert server.calls == ["GetExtendedAgentCard"]
