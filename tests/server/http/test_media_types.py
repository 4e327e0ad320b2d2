"""Media types of requests, answers and errors, and byte order marks before JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

import parley
from parley import Agent, Settings, Turn
from parley.envelope.codec import read_message
from parley.model.service import Caller
from parley.push.verification import read_event
from parley.server.http.callbacks import read_content
from parley.server.http.responses import answered_with
from parley.server.run import serving
from parley.store.memory import MemoryLogs, MemoryTaskStore
from tests.contract.agents import who
from tests.kit.http import MESSAGE, ask, call, connection
from tests.wire.envelope.messages import REQUEST

pytestmark = pytest.mark.anyio


A2A, JSON, SSE = "application/a2a+json", "application/json", "text/event-stream"
LARGE = 2048

# What a caller accepts, and what it is answered with when it sent nothing, a2a+json, or json.
CALLERS = [
    (None, A2A, A2A, JSON),
    ("", A2A, A2A, JSON),
    ("*/*", A2A, A2A, JSON),
    ("application/*", A2A, A2A, JSON),
    ("text/html, */*;q=0.8", A2A, A2A, JSON),
    ("*/*, text/event-stream", A2A, A2A, JSON),
    # The official Go client: a stream alone, or JSON alone.
    (SSE, JSON, JSON, JSON),
    (JSON, JSON, JSON, JSON),
    ("Application/JSON;charset=utf-8", JSON, JSON, JSON),
    (f"{SSE}, {JSON}", JSON, JSON, JSON),
    ("text/html, application/json;q=0.9", JSON, JSON, JSON),
    ("application/json, text/plain, */*", JSON, JSON, JSON),
    ("application/json, */*;q=0.1", JSON, JSON, JSON),
    ("application/json;q=0.5, application/a2a+json;q=0.4", JSON, JSON, JSON),
    ("application/json;q=0.001, application/a2a+json;q=0", JSON, JSON, JSON),
    ("application/*, application/a2a+json;q=0", JSON, JSON, JSON),
    ("text/html", JSON, JSON, JSON),
    ("application/json;q=0, application/a2a+json;q=0", JSON, JSON, JSON),
    (A2A, A2A, A2A, A2A),
    ("APPLICATION/A2A+JSON", A2A, A2A, A2A),
    (f"{SSE}, {A2A}", A2A, A2A, A2A),
    (f"{SSE}, {A2A}, {JSON}", A2A, A2A, A2A),
    (f"{JSON}, {A2A}", A2A, A2A, A2A),
    ("application/a2a+json;q=0.9, application/json;q=0.8", A2A, A2A, A2A),
    ("application/json;q=0.8, application/*", A2A, A2A, A2A),
    ("application/json;q=0, */*", A2A, A2A, A2A),
    (f"{A2A}, */*", A2A, A2A, A2A),
    ("application/json;q=much, application/a2a+json;q=nan", A2A, A2A, A2A),
]


@pytest.mark.parametrize(("accept", "unsaid", "own", "plain"), CALLERS)
def test_the_caller_prefers_then_names_then_sent_it(accept, unsaid, own, plain):
    for sent, expected in ((None, unsaid), (A2A, own), (JSON, plain), (f"{JSON}; a=b", plain)):
        given = [("content-type", sent), ("accept", accept)]
        headers = [(name.encode(), value.encode()) for name, value in given if value is not None]
        assert answered_with(A2A.encode(), headers) == expected.encode()
        assert answered_with(JSON.encode(), headers) == JSON.encode()  # as 0.3 has it


def test_several_accept_headers_are_one_list():
    headers = [(b"accept", b"text/event-stream"), (b"accept", b"application/a2a+json")]
    assert answered_with(A2A.encode(), headers) == A2A.encode()


class Problem(NamedTuple):
    """A request that is answered with an error: of which status, at which path of 1.0."""

    status: int
    verb: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = {}


SEND = b'{"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}'
FOLLOW = SEND.replace(b'"messageId"', b'"taskId": "nobody", "messageId"')
PROBLEMS = {
    "no such path": Problem(404, "GET", "/nothing"),
    "no such path to post to": Problem(404, "POST", "/nothing", b"{}"),
    "another verb": Problem(405, "DELETE", "/message:send"),
    "no such task": Problem(404, "GET", "/tasks/nobody"),
    "nothing to cancel": Problem(404, "POST", "/tasks/nobody:cancel", b"{}"),
    "a bad parameter": Problem(400, "GET", "/tasks?pageSize=many"),
    "a bad message": Problem(400, "POST", "/message:send", b'{"message": {}}'),
    "no JSON": Problem(400, "POST", "/message:send", b"{"),
    "a refused stream": Problem(404, "POST", "/message:stream", FOLLOW),
    "a bad stream": Problem(400, "POST", "/message:stream", b"{}"),
    "a refused subscription": Problem(404, "POST", "/tasks/nobody:subscribe", b"{}"),
    "a subscription by GET": Problem(404, "GET", "/tasks/nobody:subscribe"),
    "another version": Problem(400, "GET", "/tasks", b"", {"A2A-Version": "7.0"}),
    "too large": Problem(413, "POST", "/message:send", b" " * (LARGE + 1)),
    "another host": Problem(421, "GET", "/tasks", b"", {"Host": "evil.example"}),
    "nobody": Problem(401, "GET", "/tasks", b"", {"x-user": "nobody"}),
    "nobody's stream": Problem(401, "POST", "/message:stream", SEND, {"x-user": "nobody"}),
    "not allowed": Problem(403, "POST", "/message:send", SEND, {"x-user": "mallory"}),
    "overloaded": Problem(503, "POST", "/message:send", SEND, {"x-user": "crowd"}),
    "an overloaded stream": Problem(503, "POST", "/message:stream", SEND, {"x-user": "crowd"}),
}
SHORT = [
    caller for caller in CALLERS if caller[0] in (None, "*/*", SSE, JSON, A2A, f"{JSON}, {A2A}")
]


def agent() -> Agent:
    """One that has the plainest card."""
    made = Agent("Plain")

    @made.skill
    async def nod(turn: Turn) -> str:
        return "mhm"

    return made


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    """A server that asks who calls and takes short bodies."""
    settings = Settings(max_body_bytes=LARGE)
    async with serving(parley.asgi(agent(), caller=who, drain=0.0, settings=settings)) as url:
        yield url


@pytest.fixture(scope="module")
async def worker() -> AsyncIterator[str]:
    """A process that has no agent to ask."""
    store = MemoryTaskStore(logs=MemoryLogs())
    async with serving(parley.asgi(agent(), store=store, role="worker")) as url:
        yield url


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize(("accept", "unsaid", "own", "plain"), SHORT)
async def test_every_error_of_http_json_has_the_type_that_its_caller_reads(
    url, problem, accept, unsaid, own, plain
):
    for sent, expected in ((None, unsaid), (A2A, own), (JSON, plain)):
        if sent is None and problem.body:
            continue
        headers = {"A2A-Version": "1.0", **problem.headers}
        headers |= {"Content-Type": sent} if sent else {}
        headers |= {"Accept": accept} if accept else {}
        response = await ask(url, problem.verb, problem.path, problem.body, headers)
        assert (response.status, response.headers["content-type"]) == (problem.status, expected)
        assert response.json["error"]["code"] == problem.status


@pytest.mark.parametrize(("accept", "unsaid", "own", "plain"), SHORT)
async def test_a_body_of_another_type_is_refused_as_who_sent_nothing_is(
    url, accept, unsaid, own, plain
):
    headers = {"A2A-Version": "1.0", "Content-Type": "text/plain"}
    headers |= {"Accept": accept} if accept else {}
    response = await ask(url, "POST", "/message:send", SEND, headers)
    assert (response.status, response.headers["content-type"]) == (415, unsaid)


@pytest.mark.parametrize(("accept", "unsaid", "own", "plain"), SHORT)
async def test_answers_have_it_too_and_streams_are_streams(url, accept, unsaid, own, plain):
    headers = {"A2A-Version": "1.0"} | ({"Accept": accept} if accept else {})
    response = await ask(url, "GET", "/tasks", b"", headers)
    assert (response.status, response.headers["content-type"]) == (200, unsaid)
    for sent, expected in ((A2A, own), (JSON, plain)):
        given = {**headers, "Content-Type": sent}
        response = await ask(url, "POST", "/message:send", SEND, given)
        assert (response.status, response.headers["content-type"]) == (200, expected)
        async with connection(url) as http:
            await http.request("POST", "/message:stream", SEND, given)
            status, received = await http.head()
            assert (status, received["content-type"]) == (200, SSE)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("accept", [None, "*/*", SSE, JSON, A2A])
@pytest.mark.parametrize("sent", [A2A, JSON])
async def test_errors_of_0_3_are_always_plain_json(url, problem, accept, sent):
    headers = {"A2A-Version": "0.3", "Content-Type": sent, **problem.headers}
    headers |= {"Accept": accept} if accept else {}
    body = problem.body.replace(b'"parts"', b'"content"')
    response = await ask(url, problem.verb, f"/v1{problem.path}", body, headers)
    assert (response.status, response.headers["content-type"]) == (problem.status, JSON)
    assert response.json["code"] < 0


RPCS = {
    "no such method": (200, b'{"jsonrpc": "2.0", "id": 1, "method": "Nothing"}', {}),
    "no such task": (200, call("GetTask", {"id": "nobody"}), {}),
    "a bad message": (200, call("SendMessage", {}), {}),
    "a refused stream": (200, call("SubscribeToTask", {"id": "nobody"}), {}),
    "no JSON": (200, b"{", {}),
    "another version": (200, call("GetTask"), {"A2A-Version": "7.0"}),
    "another type": (415, call("GetTask"), {"Content-Type": "text/plain"}),
    "too large": (413, b" " * (LARGE + 1), {}),
    "another host": (421, call("GetTask"), {"Host": "evil.example"}),
    "nobody": (401, call("GetTask"), {"x-user": "nobody"}),
    "not allowed": (403, call("GetTask"), {"x-user": "mallory"}),
    "overloaded": (503, call("SubscribeToTask"), {"x-user": "crowd"}),
}


@pytest.mark.parametrize(("status", "body", "more"), RPCS.values(), ids=RPCS)
@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("accept", [None, SSE, JSON, A2A])
@pytest.mark.parametrize("sent", [A2A, JSON])
async def test_errors_of_json_rpc_are_always_plain_json(
    url, status, body, more, version, accept, sent
):
    headers = {"A2A-Version": version, "Content-Type": sent, **more}
    headers |= {"Accept": accept} if accept else {}
    response = await ask(url, "POST", "/", body, headers)
    assert (response.status, response.headers["content-type"]) == (status, JSON)
    assert response.json["error"]["code"] < 0


@pytest.mark.parametrize(("accept", "unsaid", "own", "plain"), SHORT)
async def test_a_process_without_agents_answers_in_it_too(worker, accept, unsaid, own, plain):
    headers = {"A2A-Version": "1.0"} | ({"Accept": accept} if accept else {})
    response = await ask(worker, "GET", "/tasks", b"", headers)
    assert (response.status, response.headers["content-type"]) == (503, unsaid)
    for sent, expected in ((A2A, own), (JSON, plain)):
        response = await ask(
            worker, "POST", "/message:send", SEND, {**headers, "Content-Type": sent}
        )
        assert (response.status, response.headers["content-type"]) == (503, expected)
    older = await ask(worker, "GET", "/v1/tasks", b"", {**headers, "A2A-Version": "0.3"})
    assert (older.status, older.headers["content-type"]) == (503, JSON)


# -- A byte order mark before JSON, as editors and other languages put it there, is passed over ----


BOM = b"\xef\xbb\xbf"
OLD_MESSAGE = {**MESSAGE, "role": "user", "kind": "message"}
OLD_MESSAGE["parts"] = [{"kind": "text", "text": "What time is it?"}]


def rpc(method: str, message: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}


REQUESTS = [
    ("/", "1.0", rpc("SendMessage", MESSAGE)),
    ("/", "0.3", rpc("message/send", OLD_MESSAGE)),
    ("/message:send", "1.0", {"message": MESSAGE}),
    ("/message:send", "1.0", rpc("SendMessage", MESSAGE)),
    ("/v1/message:send", "0.3", {"message": OLD_MESSAGE}),
]


@pytest.mark.parametrize(("path", "version", "body"), REQUESTS)
@pytest.mark.parametrize("caller", [None, lambda request: Caller("ada")], ids=["anyone", "callers"])
async def test_a_request_behind_a_mark_is_read(
    path: str, version: str, body: dict[str, Any], caller: Any
) -> None:
    agent = Agent("Echo", description="Echoes", version="1.0.0")

    @agent.skill
    def echo(turn: Turn) -> str:
        """Echoes."""
        return f"heard {turn.text}"

    headers = {"Content-Type": "application/json", "A2A-Version": version}
    async with serving(parley.asgi(agent, store="memory:", caller=caller)) as url:
        for mark in (b"", BOM):
            answer = await ask(url, "POST", path, mark + json.dumps(body).encode(), headers)
            assert answer.status == 200, answer.body
            assert b"heard What" in answer.body
        answer = await ask(url, "POST", path, BOM * 2 + json.dumps(body).encode(), headers)
        assert b"heard" not in answer.body


def test_other_entries_read_it_too() -> None:
    message = read_message((BOM + json.dumps(REQUEST).encode()).decode())
    assert message.received == REQUEST
    assert read_content(b"application/json", BOM + b'{"a": 1}', max_depth=10) == {"a": 1}
    task = {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_COMPLETED"}}
    event, version = read_event(BOM + json.dumps({"task": task}).encode())
    assert (event.state.name, version) == ("COMPLETED", "1.0")  # type: ignore[union-attr]
