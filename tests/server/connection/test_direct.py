"""Requests that are answered without ASGI: alike, and only where nothing else has a say."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Turn
from parley.security import Bearer
from parley.server.app import App, Settings
from parley.server.http1.direct import DirectExchange
from parley.server.run import serving
from tests.polling import until
from tests.server.raw_http import JSON, WAIT, ask, call, connection, post

pytestmark = pytest.mark.anyio


def agent_of(**options: Any) -> Agent:
    agent = Agent("Told", **options)

    @agent.skill(default=True)
    async def say(turn: Turn) -> str:
        """Says what it was told."""
        if turn.text == "break":
            raise RuntimeError("broken")
        if turn.text == "work":
            await turn.working("on it")
        if turn.text == "reject":
            turn.reject("no")
        return turn.text.upper()

    return agent


def saying(text: str, *, id: Any = 1, **more: Any) -> bytes:
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}]}
    configuration = more.pop("configuration", None)
    params = {"message": {**message, **more}}
    if configuration is not None:
        params["configuration"] = configuration
    return call("SendMessage", params, id=id)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies of the requests that are answered without ASGI."""
    bodies: list[bytes] = []
    begin = DirectExchange.begin

    def noting(self: DirectExchange, body: bytes) -> None:
        bodies.append(body)
        begin(self, body)

    monkeypatch.setattr(DirectExchange, "begin", noting)
    return bodies


ASKED: dict[str, tuple[bytes, dict[str, str]]] = {
    "a reply": (saying("hello"), {}),
    "a reply with a configuration": (
        saying("hello", configuration={"acceptedOutputModes": ["text/plain"]}), {}
    ),
    "a reply with an id of text": (saying("hello", id="one"), {}),
    "a task": (saying("work"), {}),
    "a task without its history": (saying("work", configuration={"historyLength": 0}), {}),
    "a task at once": (saying("work", configuration={"returnImmediately": True}), {}),
    "a refusal": (saying("reject"), {}),
    "a failure": (saying("break"), {}),
    "a notification": (saying("hello", id=...), {}),
    "a notification that fails": (call("Nothing", {}, id=...), {}),
    "a message to no task": (saying("hello", taskId="t-1"), {}),
    "a message without parts": (saying("hello", parts=[]), {}),
    "a mode that it does not have": (
        saying("hello", configuration={"acceptedOutputModes": ["image/png"]}), {}
    ),
    "a stream": (call("SendStreamingMessage", json.loads(saying("work"))["params"]), {}),
    "no such task": (call("GetTask", {"id": "t-1"}), {}),
    "no such method": (call("Nothing", {}), {}),
    "no JSON": (b"{", {}),
    "no media type": (saying("hello"), {"Content-Type": "text/plain"}),
    "another version": (saying("hello"), {"A2A-Version": "7.0"}),
    "an extension": (
        saying("hello"), {"A2A-Extensions": "urn:parley:idempotent-send:v1"}
    ),
    "version 0.3": (
        json.dumps({
            "jsonrpc": "2.0", "id": 1, "method": "message/send",
            "params": {"message": {"kind": "message", "messageId": "m", "role": "user",
                                   "parts": [{"kind": "text", "text": "hello"}]}},
        }).encode(),
        {"A2A-Version": "0.3"},
    ),
}  # fmt: skip

_IDS = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}|\d{4}-\d\d-\d\dT[\d:.]+Z|[0-9a-f]{8,16}(?=[-\". ])"
)


def alike(response: Any) -> tuple[Any, ...]:
    """A response without what differs each time."""
    left = ("date", "content-length")
    headers = {name: value for name, value in response.headers.items() if name not in left}
    return response.status, headers, _IDS.sub("ID", response.body.decode())


@pytest.fixture(scope="module")
async def urls():
    """One app, with nothing around it and behind another ASGI app."""
    app = parley.asgi(agent_of())

    async def around(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    async with serving(app) as direct, serving(around) as behind:
        yield direct, behind


@pytest.mark.parametrize("name", ASKED)
async def test_an_answer_is_the_same_with_and_without_asgi(urls, begun, name: str) -> None:
    body, headers = ASKED[name]
    one = alike(await post(urls[0], body, headers))
    assert begun == [body]
    assert one == alike(await post(urls[1], body, headers))
    assert begun == [body]


async def test_pipelined_requests_are_answered_in_their_order(urls, begun) -> None:
    async with connection(urls[0]) as http:
        for n in range(20):
            text = "work" if n % 3 == 0 else "hello"
            await http.request("POST", "/", saying(text, id=n), JSON)
            await http.request("GET", "/health/live")
        for n in range(20):
            assert (await http.response()).json["id"] == n
            assert (await http.response()).json == {"status": "live"}
    assert len(begun) == 20


class Noting:
    """Middleware that notes what passes."""

    seen = 0

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            type(self).seen += 1
        await self.app(scope, receive, send)


class OtherApp(App):
    """An app that may answer otherwise."""


def other() -> App:
    app = parley.asgi(agent_of())
    app.__class__ = OtherApp
    return app


async def who(scope: Any) -> Caller:
    return Caller(id="ada", authenticated=True)


token = Bearer({"good": Caller(id="ada")}.get)

HIDDEN = "agents that not everyone may see"

GUARDED: dict[str, Any] = {
    "middleware": lambda: parley.asgi(agent_of(), middleware=[Noting]),
    "a function that says who calls": lambda: parley.asgi(agent_of(), caller=who),
    "security": lambda: parley.asgi(agent_of(security=token)),
    "CORS": lambda: parley.asgi(agent_of(), settings=Settings(cors_origins=("https://a.example",))),
    HIDDEN: lambda: parley.asgi(
        agent_of(), settings=Settings(restrict={"agents": ["192.0.2.0/24"]})
    ),
    "a class of its own": other,
}


@pytest.mark.parametrize("name", GUARDED)
async def test_nothing_that_has_a_say_is_passed_by(begun, name: str) -> None:
    Noting.seen = 0
    async with serving(GUARDED[name]()) as url:
        response = await post(url, saying("hello"), {"Origin": "https://a.example"})
        assert response.status == (401 if name == "security" else 200)
        assert ("result" in response.json) == (name not in ("security", HIDDEN))
        if name == "security":
            again = await post(url, saying("hello"), {"Authorization": "Bearer good"})
            assert "result" in again.json
        if name == "CORS":
            assert response.headers["access-control-allow-origin"] == "https://a.example"
        assert Noting.seen == (name == "middleware")
    assert begun == []


async def test_no_limit_on_callers_is_passed_by() -> None:
    async with serving(parley.asgi(agent_of(limits=["1/minute per caller"]))) as url:
        answers = [await post(url, saying("hello")) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert "ratelimit" in answers[0].headers


async def test_no_host_is_passed_by(begun) -> None:
    async with serving(parley.asgi(agent_of())) as url:
        refused = await post(url, saying("hello"), {"Host": "evil.example"})
    assert (refused.status, begun) == (421, [])


async def test_no_limit_on_bodies_is_passed_by(begun) -> None:
    app = parley.asgi(agent_of(), settings=Settings(max_body_bytes=1024))
    async with serving(app) as url:
        assert (await post(url, saying("x" * 2000))).status == 413
        assert (await ask(url, "PUT", "/", saying("hello"), JSON)).status == 405
    assert begun == []


class Gate:
    """An agent whose turns wait."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.runs = 0
        self.agent = Agent("Gate", cancel_grace=0.1, direct_reply_timeout=60)

        @self.agent.skill(replies="message")
        async def wait(turn: Turn) -> str:
            """Waits."""
            self.runs += 1
            await self.opened.wait()
            return "done"


async def test_who_waits_has_a_slot_until_the_turn_ends_or_the_client_has_gone(begun) -> None:
    gate = Gate()
    app = parley.asgi(gate.agent, settings=Settings(max_blocking_requests=1))
    async with asyncio.timeout(WAIT * 6), serving(app) as url:
        async with connection(url) as gone:
            await gone.request("POST", "/", saying("x"), JSON)
            await until(lambda: gate.runs == 1)
            assert (await post(url, saying("x"))).status == 503
        gate.opened.set()

        async def is_free() -> bool:
            return (await post(url, saying("x"))).status == 200

        await until(is_free)
    assert len(begun) >= 3


async def test_who_waits_is_told_when_the_server_ends() -> None:
    gate = Gate()
    async with asyncio.timeout(WAIT * 6):
        async with serving(parley.asgi(gate.agent, drain=0.1), grace=1) as url:
            asking = asyncio.create_task(post(url, saying("x")))
            await until(lambda: gate.runs == 1)
        told = await asking
    assert told.status == 503
    assert told.error["code"] == -32012
