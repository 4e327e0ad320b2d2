"""What goes out with a request: its media type, its extensions, a caller's own headers."""

from __future__ import annotations

from typing import Any

import pytest

from parley.client import connect
from parley.client.errors import UnexpectedStatus
from parley.model.errors import A2AError, ContentTypeNotSupportedError
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.tasks import TaskState
from tests.kit.scripted_server import ARTIFACT, HI, Agent, Exchange, card, scripted, talk, task

pytestmark = pytest.mark.anyio

ONE, TWO = "urn:example:one", "urn:example:two"


def rest_card(url: str, *extensions: str, version: str = "1.0") -> dict[str, Any]:
    offered = {"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": version}
    return {**card(url, *extensions), "supportedInterfaces": [offered]}


class PlainJson:
    """An agent that takes application/json alone, as the official Java one does."""

    def __init__(self, *, takes_nothing: bool = False) -> None:
        self.sent: list[tuple[str, str]] = []
        self.done = 0
        self._takes_nothing = takes_nothing

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.path.endswith(".json"):
            await exchange.json(rest_card(f"http://{exchange.headers['host']}"))
            return
        kind = exchange.headers.get("content-type", "")
        self.sent.append((exchange.path, kind))
        if exchange.body and (kind != "application/json" or self._takes_nothing):
            await exchange.body_of(b"", 415)
            return
        self.done += 1
        if exchange.path.endswith(":stream"):
            await exchange.stream(b'data: {"message": %b}\n\n' % b"".join(_hi()))
        elif exchange.method == "GET":
            await exchange.json(task())
        else:
            await exchange.json(HI)


def _hi() -> list[bytes]:
    return [b'{"messageId":"r","role":"ROLE_AGENT","parts":[{"text":"hi"}]}']


async def test_where_a2a_json_is_refused_plain_json_is_sent_once_and_from_then_on() -> None:
    agent = PlainJson()
    async with scripted(agent) as server, connect(server.url, retries=0) as remote:
        assert (await remote.send("go")).text == "hi"
        assert [kind for _, kind in agent.sent] == ["application/a2a+json", "application/json"]
        assert agent.done == 1
        assert (await remote.send("go")).text == "hi"
        assert [event.text async for event in remote.stream("go")] == ["hi"]
        assert (await remote.get("t-1")).state is TaskState.COMPLETED
        kinds = [kind for _, kind in agent.sent[2:]]
        assert kinds == ["application/json", "application/json", ""]
        # One connection does for all of it.
        assert server.connections == 1


async def test_a_stream_is_asked_for_again_as_plain_json() -> None:
    agent = PlainJson()
    async with scripted(agent) as server, connect(server.url, retries=0) as remote:
        assert [event.text async for event in remote.stream("go")] == ["hi"]
        assert [kind for _, kind in agent.sent] == ["application/a2a+json", "application/json"]
        assert agent.done == 1


async def test_a_server_that_takes_neither_is_asked_twice_and_believed() -> None:
    agent = PlainJson(takes_nothing=True)
    async with scripted(agent) as server, connect(server.url, retries=0) as remote:
        for _ in range(2):
            with pytest.raises(UnexpectedStatus, match="answered 415"):
                await remote.send("go")
        # It has not said that it takes plain JSON.
        assert [kind for _, kind in agent.sent] == ["application/a2a+json", "application/json"] * 2


async def test_a_refusal_of_the_content_is_the_agents_own() -> None:
    async def refuses(exchange: Exchange) -> None:
        if exchange.path.endswith(".json"):
            await exchange.json(rest_card(f"http://{exchange.headers['host']}"))
            return
        error = {"code": 415, "status": "INVALID_ARGUMENT", "message": "no pictures"}
        await exchange.json({"error": error}, 415)

    async with scripted(refuses) as server, connect(server.url, retries=0) as remote:
        with pytest.raises(ContentTypeNotSupportedError, match="no pictures"):
            await remote.send("go")


async def test_a_media_type_of_the_callers_own_is_not_changed() -> None:
    agent = PlainJson()
    headers = {"content-TYPE": "application/x-own+json"}
    async with scripted(agent) as server, connect(server.url, headers=headers, retries=0) as remote:
        with pytest.raises(UnexpectedStatus, match="answered 415"):
            await remote.send("go")
        assert [kind for _, kind in agent.sent] == ["application/x-own+json"]


# Extensions that a caller's header names


def named(exchange: Exchange, header: str = "a2a-extensions") -> list[str]:
    return [uri.strip() for uri in exchange.headers[header].split(",")]


@pytest.mark.parametrize("header", ["A2A-Extensions", "a2a-extensions", "X-A2A-EXTENSIONS"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_extensions_of_a_callers_header_are_added_to_ours(
    header: str, binding: str, version: str
) -> None:
    async def agent(exchange: Exchange) -> None:
        if exchange.path.endswith(".json"):
            url = f"http://{exchange.headers['host']}/a"
            offered = {"url": url, "protocolBinding": binding, "protocolVersion": version}
            extensions = [IDEMPOTENT_SEND, TWO]
            await exchange.json({**card(url, *extensions), "supportedInterfaces": [offered]})
        else:
            await exchange.json({"error": {"code": -32001, "message": "no"}}, 404)

    async with scripted(agent) as server:
        options: dict[str, Any] = {"headers": {header: f"{ONE} ,{TWO}, {ONE}"}, "retries": 0}
        async with connect(server.url, extensions=[TWO], **options) as remote:
            with pytest.raises((A2AError, UnexpectedStatus)):
                await remote.get("t")
        ours = "a2a-extensions" if version == "1.0" else "x-a2a-extensions"
        assert named(server.exchanges[-1], ours) == sorted([ONE, TWO, IDEMPOTENT_SEND])
        other = {"a2a-extensions", "x-a2a-extensions"} - {ours}
        assert not other & server.exchanges[-1].headers.keys()


async def test_an_extension_that_a_header_names_is_one_that_is_spoken() -> None:
    agent = Agent(HI, capabilities={"extensions": [{"uri": ONE, "required": True}]})
    async with (
        scripted(agent) as server,
        connect(server.url, headers={"A2A-Extensions": ONE}) as remote,
    ):
        assert (await remote.send("go")).text == "hi"


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"A2A-Version": "0.3"}, "say it with version="),
        ({"last-event-id": "3"}, "subscribe"),
        ({"Content-Length": "3"}, "counts the body itself"),
        ({"Connection": "close"}, "looks after its connections"),
        ({"X-A": "1", "x-a": "2"}, "given twice"),
        ({"X-A": "1\r\nX-B: 2"}, "no request can carry"),
        ({"X-A": "\udc80"}, "no request can carry"),
        ({"X A": "1"}, "no request can carry"),
    ],
)
def test_a_header_that_would_not_go_out_as_given_is_refused(
    headers: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        connect("http://localhost:9", headers=headers)


async def test_headers_of_a_caller_go_out_beside_ours_once() -> None:
    agent = Agent(task(artifacts=[ARTIFACT]))
    headers = {"accept": "text/plain", "TraceParent": "00-1-2-01", "x-own": "1"}
    async with scripted(agent) as server, connect(server.url, headers=headers) as remote:
        await remote.get("t-1")
        sent = server.exchanges[-1].headers
        assert sent["accept"] == "application/json, text/plain"
        assert (sent["traceparent"], sent["x-own"]) == ("00-1-2-01", "1")


# Whose answer it is


async def answer_as(exchange: Exchange, id: Any, **more: Any) -> None:
    await exchange.json({"jsonrpc": "2.0", "id": id, **more})


@pytest.mark.parametrize(
    "members", [{"result": task()}, {"error": {"code": -32001, "message": ""}}]
)
async def test_an_answer_to_another_request_is_not_ours(members: dict[str, Any]) -> None:
    async def another(exchange: Exchange) -> None:
        await answer_as(exchange, 4711, **members)

    async with talk(Agent(another), retries=0) as (remote, _):
        with pytest.raises(A2AError, match="has the id 4711, and the request had 1") as raised:
            await remote.get("t-1")
        assert raised.value.reason == "INVALID_AGENT_RESPONSE"


@pytest.mark.parametrize("id", [None, "1", 1.0])
async def test_an_id_of_another_form_is_ours(id: Any) -> None:
    async def ours(exchange: Exchange) -> None:
        await answer_as(exchange, id, result=task())

    async with talk(Agent(ours), retries=0) as (remote, _):
        assert (await remote.get("t-1")).id == "t-1"


async def test_events_of_another_request_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async def mixed(exchange: Exchange) -> None:
        theirs = exchange.frame({"task": task("FAILED", "t-2")}).replace(b'"id": 1,', b'"id": 77,')
        assert b'"id": 77,' in theirs
        ours = exchange.frame({"task": task("WORKING")}) + exchange.frame({"task": task()})
        await exchange.stream(theirs + ours[:-1] + b"\n" + theirs)

    async with talk(Agent(mixed), retries=0) as (remote, _):
        events = [event async for event in remote.stream("go")]
        assert [event.id for event in events] == ["t-1", "t-1"]
    assert "the answer has the id 77, and the request had 1" in caplog.text


# Where a stream ends


FAILED = {"taskId": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_FAILED"}}


@pytest.mark.parametrize("last", [{"task": task()}, {"statusUpdate": FAILED}, HI])
async def test_nothing_that_follows_the_end_is_yielded(last: dict[str, Any]) -> None:
    async def babbling(exchange: Exchange) -> None:
        update = {"taskId": "t-1", "contextId": "c-1", "artifact": ARTIFACT}
        frames = [last, {"artifactUpdate": update}, {"task": task("WORKING")}]
        await exchange.stream(b"".join(map(exchange.frame, frames)))

    async with talk(Agent(babbling), retries=0) as (remote, server):
        assert len([event async for event in remote.stream("go")]) == 1
        items = remote.service.send_streaming_message(_request(), remote.context)
        assert len([item async for item in items]) == 1
        await remote.aclose()
        await server.until_idle()


def _request() -> Any:
    from parley.model.operations import SendMessageRequest
    from parley.model.parts import Message, Part, Role

    message = Message(message_id="m", role=Role.USER, parts=(Part(text="go"),))
    return SendMessageRequest(message=message)
