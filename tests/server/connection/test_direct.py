"""Requests that are answered without ASGI: alike, and only where nothing else has a say."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Execution, Rights, Turn
from parley.model.errors import UnauthenticatedError
from parley.model.service import ANONYMOUS
from parley.security import ApiKey, Bearer, anonymous
from parley.security.authentication import Authenticator
from parley.server.app import Settings
from parley.server.http1 import head as responses
from parley.server.http1.asgi import AsgiExchange, DirectExchange
from parley.server.http1.head import response_head, whole_response
from parley.server.log import hide_tokens, log_request
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from tests.kit.http import JSON, WAIT, ask, call, connection, post
from tests.kit.waiting import until

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

# Over HTTP+JSON: the verb, the path, the body and the headers.
ASKED_BY_PATH: dict[str, tuple[str, str, bytes, dict[str, str]]] = {
    "a reply": ("POST", "/message:send", json.dumps(MESSAGE).encode(), {}),
    "a tenant that is not there": ("POST", "/t/message:send", json.dumps(MESSAGE).encode(), {}),
    "an envelope of JSON-RPC": ("POST", "/message:send", saying("hello"), {}),
    "a message without a body": ("POST", "/message:send", b"", {}),
    "no media type": ("POST", "/message:send", b"{}", {"Content-Type": "text/plain"}),
    "a stream": ("POST", "/message:stream", json.dumps(MESSAGE).encode(), {}),
    "no such task": ("GET", "/tasks/t-1", b"", {}),
    "tasks": ("GET", "/tasks?pageSize=1&historyLength=0", b"", {}),
    "tasks of a wrong page": ("GET", "/tasks?pageToken=x", b"", {}),
    "a query that is none": ("GET", "/tasks?pageSize=%ff", b"", {}),
    "a body that nobody reads": ("GET", "/tasks/t-1", b"{}", {}),
    "another version": ("GET", "/tasks/t-1", b"", {"A2A-Version": "7.0"}),
    "version 0.3": ("GET", "/v1/tasks/t-1", b"", {"A2A-Version": "0.3"}),
    "another media type": ("GET", "/tasks/t-1", b"", {"Accept": "application/a2a+json"}),
}

# What the handlers of an agent answer otherwise than its bindings do.
ASGI_ALONE = (
    ("GET", "/"), ("PUT", "/"), ("GET", "/nowhere"), ("HEAD", "/tasks/t-1"), ("PUT", "/tasks"),
    ("OPTIONS", "/tasks"), ("GET", "/.well-known/agent-card.json"), ("GET", "/health/live"),
    ("POST", "/files"), ("GET", "/files/x"), ("POST", "/envelope"), ("GET", "/t/envelope"),
)  # fmt: skip

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


@pytest.mark.parametrize("name", ASKED_BY_PATH)
async def test_an_answer_by_path_is_the_same_with_and_without_asgi(urls, begun, name: str) -> None:
    verb, path, body, headers = ASKED_BY_PATH[name]
    one = alike(await ask(urls[0], verb, path, body, {**JSON, **headers}))
    assert begun == [body]
    assert one == alike(await ask(urls[1], verb, path, body, {**JSON, **headers}))
    assert begun == [body]


@pytest.mark.parametrize(("verb", "path"), ASGI_ALONE)
async def test_no_other_handler_is_passed_by(urls, begun, verb: str, path: str) -> None:
    one, other = [alike(await ask(url, verb, path, b"", JSON)) for url in urls]
    assert (one[0], one[1].keys()) == (other[0], other[1].keys())
    assert begun == []


@pytest.fixture
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of the requests that are answered in a task of their own."""
    methods: list[str] = []
    run = AsgiExchange.run

    async def noting(self: AsgiExchange, app: Any) -> None:
        methods.append(self._scope["method"])
        await run(self, app)

    monkeypatch.setattr(AsgiExchange, "run", noting)
    return methods


@pytest.mark.parametrize("store", ["memory:", "sqlite:///"])
async def test_tasks_are_read_without_a_task_where_nothing_is_waited_for(
    tmp_path: Path, begun, in_tasks, store: str
) -> None:
    if store != "memory:":
        store += str(tmp_path / "tasks.db")
    app = parley.asgi(agent_of(), store=store)

    async def around(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    async with serving(app) as url, serving(around) as behind:
        made = (await post(url, saying("work"))).json["result"]["task"]
        asked = [
            call("GetTask", {"id": made["id"]}),
            call("GetTask", {"id": made["id"], "historyLength": 0}),
            call("GetTask", {"id": made["id"], "historyLength": -1}),
            call("ListTasks", {"includeArtifacts": True}),
        ]
        in_tasks.clear()
        direct = [await post(url, body) for body in asked]
        direct.append(await ask(url, "GET", f"/tasks/{made['id']}", b"", JSON))
        assert len(in_tasks) == (0 if store == "memory:" else len(direct))
        assert len(begun) == 6
        through = [await post(behind, body) for body in asked]
        through.append(await ask(behind, "GET", f"/tasks/{made['id']}", b"", JSON))
    assert [alike(each) for each in direct] == [alike(each) for each in through]
    assert direct[0].json["result"] == direct[4].json == made


def maker(**options: Any) -> tuple[Agent, asyncio.Event]:
    """An agent with a skill that makes tasks, one that may, and one that works until an event."""
    agent, opened = Agent("Maker", **options), asyncio.Event()

    async def make(turn: Turn) -> None:
        """Makes a task."""
        await turn.working()
        if turn.text == "break":
            raise RuntimeError("broken")
        if turn.text == "ask":
            await turn.ask("what?")
        await turn.artifact(turn.text, name="result")
        if turn.text == "wait":
            await opened.wait()

    agent.skill(id="declared", replies="task")(make)
    agent.skill(id="undeclared")(make)
    return agent, opened


def making(text: str, skill: str, **more: Any) -> bytes:
    return saying(text, metadata={"skill": skill}, **more)


@pytest.mark.parametrize("store", ["memory:", "sqlite:///"])
@pytest.mark.parametrize("skill", ["declared", "undeclared"])
async def test_a_task_is_answered_without_asgi(
    tmp_path: Path, in_tasks, skill: str, store: str
) -> None:
    if store != "memory:":
        store += str(tmp_path / "tasks.db")
    app = parley.asgi(maker()[0], store=store)

    async def around(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    asked = [making(text, skill) for text in ("hello", "break", "ask")]
    asked += [making(text, skill, configuration={"historyLength": 0}) for text in ("hello", "ask")]
    async with serving(app) as url, serving(around) as behind:
        direct = [await post(url, body) for body in asked]
        assert in_tasks == []
        through = [await post(behind, body) for body in asked]
        assert in_tasks == ["POST"] * len(asked)
        for answer in direct:
            task = answer.json["result"]["task"]
            got = await post(url, call("GetTask", {"id": task["id"]}))
            assert got.json["result"]["status"] == task["status"]
    assert [alike(each) for each in direct] == [alike(each) for each in through]


@pytest.mark.parametrize("skill", ["declared", "undeclared"])
async def test_who_waits_too_long_gets_the_task_as_it_is(
    tmp_path: Path, in_tasks, skill: str
) -> None:
    agent, opened = maker(execution=Execution(direct_reply_timeout=0.01, blocking_timeout=0.05))
    app = parley.asgi(agent, store=f"sqlite:///{tmp_path / 'tasks.db'}")

    async def around(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    async with asyncio.timeout(WAIT * 6), serving(app) as url, serving(around) as behind:
        direct = await post(url, making("wait", skill))
        assert in_tasks == ["POST"]
        through = await post(behind, making("wait", skill))
        opened.set()
    assert direct.json["result"]["task"]["status"]["state"] == "TASK_STATE_WORKING"
    assert alike(direct)[:2] == alike(through)[:2]


async def test_who_waits_for_a_task_has_a_slot_until_its_turn_ends(tmp_path: Path) -> None:
    agent, opened = maker()
    app = parley.asgi(
        agent,
        store=f"sqlite:///{tmp_path / 'tasks.db'}",
        settings=Settings(max_blocking_requests=1),
    )
    async with asyncio.timeout(WAIT * 6), serving(app) as url:
        async with connection(url) as gone:
            await gone.request("POST", "/", making("wait", "declared"), JSON)

            async def is_made() -> bool:
                tasks = (await post(url, call("ListTasks", {}))).json["result"]["tasks"]
                return bool(tasks)

            await until(is_made)
            assert (await post(url, making("hello", "declared"))).status == 503
        assert (await post(url, making("hello", "declared"))).status == 503
        opened.set()

        async def is_free() -> bool:
            return (await post(url, making("hello", "declared"))).status == 200

        await until(is_free)


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
        for path in ("/message:send", "/tasks"):
            verb, body = (
                ("GET", b"") if path == "/tasks" else ("POST", json.dumps(MESSAGE).encode())
            )
            other = await ask(url, verb, path, body, {**JSON, "Origin": "https://a.example"})
            assert (other.status == 200) == (name not in ("security", HIDDEN)), path
        assert Noting.seen == (3 if name == "middleware" else 0)
    assert len(begun) == {"a function that says who calls": 3, "security": 4}.get(name, 0)


ADA = Caller(id="ada", scopes=frozenset({"read"}))
KEYS = {hashlib.sha256(b"good").hexdigest(): ADA}


class Doors:
    """Ways to find out who calls; ``asked`` counts how often the author's code was."""

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
    """A scheme whose challenge no header can have."""

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
    if name == "a limit":  # it says how many seconds are left
        assert [each[0] for each in direct] == [each[0] for each in through]
        direct, through = (
            [re.sub(r"\d\d", "", repr(each)) for each in own] for own in (direct, through)
        )
    assert direct == through
    assert (one.asked, refused(app)) == (other.asked, refused(inner))
    assert None not in one.tasks
    assert len(begun) == len(direct)


async def test_whoever_fails_too_often_is_refused() -> None:
    app = parley.asgi(agent_of(security=ApiKey(keys=KEYS)))
    bad, good = {**JSON, "X-API-Key": "bad"}, {**JSON, "X-API-Key": "good"}
    async with serving(app) as url, connection(url) as http:
        wrong = [await http.ask("POST", "/", saying("hello"), bad) for _ in range(32)]
        assert [each.status for each in wrong] == [401] * 30 + [429] * 2
        assert "retry-after" in wrong[-1].headers
        assert (await http.ask("POST", "/", saying("hello"), good)).status == 429


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


async def test_who_has_gone_before_the_caller_is_known_begins_nothing() -> None:
    gate, asked = Gate(), asyncio.Event()
    opened, tasks = asyncio.Event(), []

    async def slow(scope: Any) -> Caller:
        tasks.append(asyncio.current_task())
        asked.set()
        await opened.wait()
        return ANONYMOUS

    app = parley.asgi(gate.agent, caller=slow)
    async with asyncio.timeout(WAIT * 6), serving(app) as url:
        async with connection(url) as http:
            await http.request("POST", "/", saying("x" * 20_000), JSON)
            await asked.wait()
            await until(lambda: app.request_bytes.total > 0)
        await until(lambda: app.request_bytes.total == 0)
        opened.set()
        await asyncio.wait(tasks)
    assert gate.runs == 0


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
        large = json.dumps(json.loads(saying("x" * 2000))["params"]).encode()
        assert (await ask(url, "POST", "/message:send", large, JSON)).status == 413
    assert begun == []


async def reader(access: Any) -> bool:
    return access.operation not in ("GetTask", "ListTasks")


async def test_no_policy_is_passed_by(in_tasks) -> None:
    async with serving(parley.asgi(agent_of(rights=Rights(policy=reader)))) as url:
        for body in (call("GetTask", {"id": "t-1"}), call("ListTasks", {})):
            assert (await post(url, body)).status == 403
    assert in_tasks == ["POST", "POST"]


class Gate:
    """An agent whose turns wait."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.runs = 0
        self.agent = Agent("Gate", execution=Execution(cancel_grace=0.1, direct_reply_timeout=60))

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


def test_a_head_that_is_put_together_once_is_the_same() -> None:
    def parts(head: bytes) -> list[bytes]:
        return sorted(line for line in head.split(b"\r\n") if not line.startswith(b"date: "))

    for fields in ((), ((b"a", b"1"),), ((b"a", b"1"), (b"retry-after", b"2"))):
        for body in (b"", b"{}"):
            whole = response_head(200, [*fields, (b"content-length", b"%d" % len(body))])
            for _ in range(2):
                head, _, written = whole_response(200, fields, body).partition(b"\r\n\r\n")
                assert written == body
                assert parts(head + b"\r\n\r\n") == parts(whole)
    for _ in range(2):
        with pytest.raises(ValueError, match="control character"):
            whole_response(200, ((b"a", b"1\r\nb: 2"),), b"")


def test_the_heads_that_are_kept_are_bounded() -> None:
    for n in range(500):
        whole_response(200, ((b"a", b"%d" % n),), b"")
        whole_response(200, ((b"a", b"%d" % n * 1000),), b"")
    assert len(responses._known_lines) <= 128
    assert sum(map(len, responses._known_lines.values())) <= 128 * 1024
