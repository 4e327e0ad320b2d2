"""Media types of requests, responses and errors, and byte order marks before JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import parley
from parley import Agent, Settings, Turn
from parley.envelope.codec import read_message
from parley.model.service import Caller
from parley.push.verification import read_event
from parley.server.http.callbacks import read_content
from parley.server.http.responses import answered_with
from parley.server.run import serving
from tests.contract.agents import who
from tests.kit.http import MESSAGE, ask
from tests.wire.envelope.messages import REQUEST

pytestmark = pytest.mark.anyio


A2A, JSON, SSE = "application/a2a+json", "application/json", "text/event-stream"
LARGE = 2048

# The caller's Accept header, and the responses to no media type, a2a+json, and json.
CALLERS = [
    (None, A2A, A2A, JSON),
    ("", A2A, A2A, JSON),
    ("*/*", A2A, A2A, JSON),
    ("application/*", A2A, A2A, JSON),
    ("text/html, */*;q=0.8", A2A, A2A, JSON),
    ("*/*, text/event-stream", A2A, A2A, JSON),
    # The official Go client: only a stream, or only JSON.
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


OLD_MESSAGE = {**MESSAGE, "role": "user", "kind": "message"}


@pytest.mark.parametrize(("accept", "unsaid", "own", "plain"), CALLERS)
def test_the_caller_prefers_then_names_then_sent_it(accept, unsaid, own, plain):
    for sent, expected in ((None, unsaid), (A2A, own), (JSON, plain), (f"{JSON}; a=b", plain)):
        given = [("content-type", sent), ("accept", accept)]
        headers = [(name.encode(), value.encode()) for name, value in given if value is not None]
        assert answered_with(A2A.encode(), headers) == expected.encode()
        assert answered_with(JSON.encode(), headers) == JSON.encode()  # as in 0.3


def agent() -> Agent:
    """An agent with a minimal card."""
    made = Agent("Plain")

    @made.skill
    async def nod(turn: Turn) -> str:
        return "mhm"

    return made


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    """A server with authentication and a limit on bodies."""
    settings = Settings(max_body_bytes=LARGE)
    async with serving(parley.asgi(agent(), caller=who, drain=0.0, settings=settings)) as url:
        yield url


# -- a byte order mark before JSON, as editors and other languages add it, is ignored --------------


BOM = b"\xef\xbb\xbf"


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


OLD_MESSAGE = {**MESSAGE, "role": "user", "kind": "message"}
OLD_MESSAGE["parts"] = [{"kind": "text", "text": "What time is it?"}]
