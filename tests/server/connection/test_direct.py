"""Requests handled without ASGI: the same responses, and only where nothing else must run."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Rights, Turn
from parley.model.errors import UnauthenticatedError
from parley.model.service import ANONYMOUS
from parley.security import ApiKey, Bearer, anonymous
from parley.security.authentication import Authenticator
from parley.server.app import Settings
from parley.server.http1 import head as responses
from parley.server.http1.asgi import AsgiExchange, DirectExchange
from parley.server.http1.head import whole_response
from parley.server.log import hide_tokens, log_request
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from tests.kit.http import JSON, ask, call, connection, post

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
    """The bodies of the requests handled without ASGI."""
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
    "a notification that reads": (call("ListTasks", {}, id=...), {}),
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

MESSAGE = json.loads(saying("hello"))["params"]

_IDS = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}|\d{4}-\d\d-\d\dT[\d:.]+Z"
    r"|[0-9a-f]{8,16}(-[0-9a-f]{4})?(?=[-\". ])"
)


def alike(response: Any) -> tuple[Any, ...]:
    """A response without the parts that differ each time."""
    left = ("date", "content-length")
    headers = {name: value for name, value in response.headers.items() if name not in left}
    return response.status, headers, _IDS.sub("ID", response.body.decode())


@pytest.fixture(scope="module")
async def urls():
    """One app, alone and behind another ASGI app."""
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


@pytest.fixture
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of the requests handled in a task of their own."""
    methods: list[str] = []
    run = AsgiExchange.run

    async def noting(self: AsgiExchange, app: Any) -> None:
        methods.append(self._scope["method"])
        await run(self, app)

    monkeypatch.setattr(AsgiExchange, "run", noting)
    return methods


async def test_a_store_that_waits_all_the_same_is_asked_in_a_task(
    monkeypatch: pytest.MonkeyPatch, in_tasks
) -> None:
    load, asked = MemoryTaskStore.load, 0

    async def waits(self: MemoryTaskStore, *args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return await load(self, *args, **options)

    monkeypatch.setattr(MemoryTaskStore, "load", waits)
    async with serving(parley.asgi(agent_of())) as url:
        assert (await post(url, call("GetTask", {"id": "t-1"}))).error["code"] == -32001
    assert (in_tasks, asked) == (["POST"], 2)


async def who(scope: Any) -> Caller:
    return Caller(id="ada", authenticated=True)


token = Bearer({"good": Caller(id="ada")}.get)


ADA = Caller(id="ada", scopes=frozenset({"read"}))
KEYS = {hashlib.sha256(b"good").hexdigest(): ADA}


class Doors:
    """Ways to identify callers; ``asked`` counts the calls of the author's code."""

    def __init__(self) -> None:
        self.asked = 0
        self.tasks: set[object] = set()

    def judge(self, token: str) -> Caller | None:
        self.asked += 1
        return ADA if token == "good" else None

    async def judge_later(self, token: str) -> Caller | None:
        self.tasks.add(asyncio.current_task())
        await asyncio.sleep(0)
        return self.judge(token)

    async def caller(self, scope: Any) -> Caller:
        self.tasks.add(asyncio.current_task())
        return self.plain_caller(scope)

    def plain_caller(self, scope: Any) -> Caller:
        self.asked += 1
        assert "noted" not in scope
        scope["noted"] = scope["state"]["noted"] = True
        value = dict(scope["headers"]).pop(b"authorization", b"")
        scope["headers"].clear()
        if value == b"Bearer good":
            return Caller(id="ada", authenticated=True)
        if value == b"Bearer bad":
            raise UnauthenticatedError("no", challenges=('Bearer realm="a"',))
        if value:
            raise RuntimeError("broken")
        return ANONYMOUS


class Torn(Bearer):
    """A scheme with a challenge that is invalid in a header."""

    def challenge(self, *args: Any, **options: Any) -> str:
        return "Bearer\r\nx: y"


async def broken(scope: Any) -> Caller:
    raise asyncio.CancelledError


async def ended(scope: Any) -> Caller:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return ANONYMOUS


DOORS: dict[str, Any] = {
    "keys": lambda doors: parley.asgi(agent_of(security=ApiKey(keys=KEYS))),
    "keys, or nobody": lambda doors: parley.asgi(agent_of(security=ApiKey(keys=KEYS) | anonymous)),
    "keys that a function knows": lambda doors: parley.asgi(
        agent_of(security=ApiKey(keys=lambda digest: KEYS.get(digest)))
    ),
    "tokens": lambda doors: parley.asgi(agent_of(security=Bearer(doors.judge))),
    "tokens, later": lambda doors: parley.asgi(agent_of(security=Bearer(doors.judge_later))),
    "keys and tokens": lambda doors: parley.asgi(
        agent_of(security=ApiKey(keys=KEYS) & Bearer(doors.judge_later))
    ),
    "a scope": lambda doors: parley.asgi(
        agent_of(security=Bearer(doors.judge).with_scopes("read", "write"))
    ),
    "a policy": lambda doors: parley.asgi(
        agent_of(security=Bearer(doors.judge), rights=Rights(policy=reader))
    ),
    "a limit": lambda doors: parley.asgi(
        agent_of(security=Bearer(doors.judge), limits=["2/minute per caller"])
    ),
    "a caller": lambda doors: parley.asgi(agent_of(), caller=doors.caller),
    "a caller, in a thread": lambda doors: parley.asgi(agent_of(), caller=doors.plain_caller),
    "a caller that is cancelled": lambda doors: parley.asgi(agent_of(), caller=broken),
    "a caller that cancels": lambda doors: parley.asgi(agent_of(), caller=ended),
    "a challenge that is none": lambda doors: parley.asgi(agent_of(security=Torn(doors.judge))),
    "only the authenticated": lambda doors: parley.asgi(
        agent_of(security=Bearer(doors.judge) | anonymous),
        settings=Settings(restrict={"agents": "authenticated"}),
    ),
}

SHOWN: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": "Bearer good", "X-API-Key": "good"},
    {"Authorization": "Bearer bad", "X-API-Key": "bad"},
    {"Authorization": "Bearer good", "X-API-Key": "bad"},
    {"Authorization": "Basic eDp5"},
    {"Authorization": "Bearer good", "X-API-Key": "good"},
)


@pytest.mark.parametrize("name", DOORS)
async def test_who_calls_is_asked_once_and_answered_the_same(begun, name: str) -> None:
    async def answers(url: str) -> list[Any]:
        found = []
        for shown in SHOWN:
            found.append(alike(await post(url, saying("hello"), shown)))
            found.append(alike(await post(url, saying("work"), shown)))
            found.append(alike(await post(url, call("GetTask", {"id": "t-1"}), shown)))
            send = ("POST", "/message:send", json.dumps(MESSAGE).encode())
            found.append(alike(await ask(url, *send, {**JSON, **shown})))
        return found

    def refused(app: Any) -> Any:
        return isinstance(app.identify, Authenticator) and app.identify.failures.refused

    one, other = Doors(), Doors()
    app, inner = DOORS[name](one), DOORS[name](other)

    async def around(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    async with inner.lifespan(), serving(app) as url, serving(around) as behind:
        direct, through = await answers(url), await answers(behind)
    if name == "a limit":  # it contains the seconds left
        assert [each[0] for each in direct] == [each[0] for each in through]
        direct, through = (
            [re.sub(r"\d\d", "", repr(each)) for each in own] for own in (direct, through)
        )
    assert direct == through
    assert (one.asked, refused(app)) == (other.asked, refused(inner))
    assert None not in one.tasks
    assert len(begun) == len(direct)


def test_a_line_of_the_access_log_is_like_any_record(caplog: pytest.LogCaptureFixture) -> None:
    scope = {
        "client": ("192.0.2.1", 5), "path": "/a b", "query_string": b"api_key=s3cret&x=1",
        "method": "GET", "http_version": "1.1",
    }  # fmt: skip
    hide_tokens()
    with caplog.at_level(logging.INFO, "uvicorn.access"):
        log_request(scope, 200)
    with caplog.at_level(logging.WARNING, "uvicorn.access"):
        log_request(scope, 201)
    (record,) = caplog.records
    assert record.getMessage() == ('192.0.2.1:5 - "GET /a%20b?api_key=...&x=1 HTTP/1.1" 200')
    place = (record.module, record.funcName)
    assert (*place, record.levelname) == ("log", "log_request", "INFO")


async def test_a_verdict_is_not_remembered_with_a_head(begun) -> None:
    good = {"one"}
    doors = Bearer(lambda token: ADA if token in good else None)
    async with serving(parley.asgi(agent_of(security=doors))) as url, connection(url) as http:
        for expected in (200, 200, 401, 401, 200):
            if expected == 401:
                good.clear()
            else:
                good.add("one")
            shown = {**JSON, "Authorization": "Bearer one"}
            assert (await http.ask("POST", "/", saying("hello"), shown)).status == expected
    assert len(begun) == 5


@pytest.mark.parametrize("text", ["hello", "work", "break"])
async def test_hsts_is_on_each_answer(begun, text: str) -> None:
    settings = Settings(trust_proxy=True, hsts_max_age=60, allowed_hosts=("*",))
    app = parley.asgi(agent_of(security=ApiKey(keys=KEYS) | anonymous), settings=settings)

    async def around(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    asked = [
        (saying(text), {}),
        (saying(text), {"X-API-Key": "bad"}),
        (call("SendStreamingMessage", json.loads(saying(text))["params"]), {}),
    ]
    async with serving(app) as url, connection(url) as http:
        for body, shown in asked:
            for host, scheme in (("a.example", "https"), ("a.example", "http"), ("::1", "https")):
                sent = {**JSON, **shown, "Host": host, "X-Forwarded-Proto": scheme}
                sent["Host"] = "[::1]" if host == "::1" else host
                answer = await http.ask("POST", "/", body, sent)
                is_told = (host, scheme) == ("a.example", "https")
                header = answer.headers.get("strict-transport-security")
                assert header == ("max-age=60" if is_told else None)
    assert len(begun) == 9


async def test_no_limit_on_reading_is_passed_by() -> None:
    async with serving(parley.asgi(agent_of(limits=["1/minute per caller"]))) as url:
        answers = [await post(url, call("ListTasks", {})) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]


async def reader(access: Any) -> bool:
    return access.operation not in ("GetTask", "ListTasks")


async def test_no_policy_is_passed_by(in_tasks) -> None:
    async with serving(parley.asgi(agent_of(rights=Rights(policy=reader)))) as url:
        for body in (call("GetTask", {"id": "t-1"}), call("ListTasks", {})):
            assert (await post(url, body)).status == 403
    assert in_tasks == ["POST", "POST"]


def test_the_heads_that_are_kept_are_bounded() -> None:
    for n in range(500):
        whole_response(200, ((b"a", b"%d" % n),), b"")
        whole_response(200, ((b"a", b"%d" % n * 1000),), b"")
    assert len(responses._known_lines) <= 128
    assert sum(map(len, responses._known_lines.values())) <= 128 * 1024
