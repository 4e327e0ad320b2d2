"""What a request brings along: version, extensions, traces and ids; and what middleware adds."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse

import parley
from parley import Agent, Turn
from parley.model.errors import InvalidParamsError, UnauthenticatedError, VersionNotSupportedError
from parley.model.ids import LONGEST_ID
from parley.model.operations import GetTaskRequest
from parley.model.service import NO_TRACE, Caller, TraceContext
from parley.server.app import Settings
from parley.server.dispatch import MAX_TRACEPARENT, MAX_TRACESTATE, read_trace
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.wire import versions
from tests.kit.grpc import rpc_to
from tests.kit.http import ask, call, post
from tests.kit.scripted import EXTENSION, Scripted, app_of, card_of, extension
from tests.kit.servers import grpc_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("named", ["1.0", " 1.0 ", "1.0.1", "1.0.0-rc"])
def test_version_1_0_is_served_however_it_is_spelled(named):
    assert versions.requested(named) == "1.0"


@pytest.mark.parametrize("named", ["", "  "])
def test_an_empty_version_is_none(named):
    assert versions.requested(named) == ""


@pytest.mark.parametrize(
    "named", ["1.1", "2.0", "99.0", "1", "10", "1.0x", "v1.0", "0.2", "\xff\xfe", "٣.0"]
)
def test_every_other_version_is_refused(named):
    with pytest.raises(VersionNotSupportedError) as raised:
        versions.requested(named)
    assert "1.0, 0.3" in raised.value.message
    assert raised.value.metadata["supportedVersions"] == "1.0, 0.3"


async def test_an_unsupported_version_is_refused_with_those_that_are(url, service):
    response = await post(url, call(), {"A2A-Version": "99.0"})
    assert response.status == 200
    assert response.error["code"] == -32009
    assert response.reason == "VERSION_NOT_SUPPORTED"
    assert response.error["data"][0]["metadata"] == {
        "requestedVersion": "99.0",
        "supportedVersions": "1.0, 0.3",
    }
    assert response.headers["a2a-version"] == "1.0"
    assert response.json["id"] == 1
    assert service.asked == []


async def test_a_request_without_a_version_is_told_the_header_to_send(url):
    response = await ask(url, "POST", "/", call(), {"Content-Type": "application/json"})
    assert response.error["code"] == -32009
    assert "A2A-Version: 1.0" in response.error["message"]


async def test_a_version_in_the_query_counts(url):
    headers = {"Content-Type": "application/json"}
    assert "result" in (await ask(url, "POST", "/?A2A-Version=1.0", call(), headers)).json
    assert "error" in (await ask(url, "POST", "/?A2A-Version=0.3", call(), headers)).json


async def test_a_setting_serves_requests_without_a_version():
    async with serving(app_of(settings=Settings(missing_version="1.0"))) as url:
        response = await ask(url, "POST", "/", call(), {"Content-Type": "application/json"})
        assert "result" in response.json
        # Only the missing version: one that is named stays refused.
        assert "error" in (await post(url, call(), {"A2A-Version": "0.3"})).json


OTHER = "urn:example:letters:v2"


@pytest.fixture
async def extended(service):
    card = card_of(extensions=(extension(), extension(uri=OTHER)))
    async with serving(app_of(service, card=card)) as address:
        yield address


async def test_extensions_that_the_card_declares_are_in_force_and_echoed(extended, service):
    asked = f"{OTHER}, urn:example:unknown:v1 ,{EXTENSION}"
    response = await post(extended, call(), {"A2A-Extensions": asked})
    assert service.context.extensions == {EXTENSION, OTHER}
    assert set(response.headers["a2a-extensions"].split(", ")) == {EXTENSION, OTHER}


async def test_the_header_may_come_more_than_once(extended, service):
    # Names of headers do not care about case, so this is twice the same one.
    headers = {"A2A-Extensions": EXTENSION, "a2a-extensions": OTHER}
    await post(extended, call(), headers)
    assert service.context.extensions == {EXTENSION, OTHER}


async def test_unknown_extensions_are_passed_over(extended, service):
    response = await post(extended, call(), {"A2A-Extensions": "urn:example:unknown:v1,,"})
    assert "result" in response.json
    assert service.context.extensions == frozenset()
    assert "a2a-extensions" not in response.headers


async def test_a_required_extension_must_be_asked_for(service):
    card = card_of(extensions=(extension(required=True),))
    async with serving(app_of(service, card=card)) as url:
        refused = await post(url, call())
        assert refused.error["code"] == -32008
        assert refused.reason == "EXTENSION_SUPPORT_REQUIRED"
        assert EXTENSION in refused.error["message"]
        assert service.asked == []
        assert "result" in (await post(url, call(), {"A2A-Extensions": EXTENSION})).json


@pytest.mark.parametrize(
    ("method", "code", "field"),
    [
        ("SendStreamingMessage", -32004, "capabilities.streaming"),
        ("SubscribeToTask", -32004, "capabilities.streaming"),
        ("ListTaskPushNotificationConfigs", -32003, "capabilities.pushNotifications"),
        ("GetExtendedAgentCard", -32004, "capabilities.extendedAgentCard"),
    ],
)
async def test_what_the_card_does_not_declare_is_refused(service, method, code, field):
    async with serving(app_of(service, card=card_of(streaming=False))) as url:
        response = await post(url, call(method))
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.error["code"] == code
    assert field in response.error["message"]
    assert service.asked == []


# -- traces are read from their headers as the W3C's Trace Context has it --------------------------


TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def test_a_trace_has_an_id_and_headers() -> None:
    trace = read_trace([PARENT], ["vendor=1"])
    assert trace == TraceContext(traceparent=PARENT, tracestate="vendor=1")
    assert trace
    assert trace.trace_id == TRACE_ID
    assert trace.headers == {"traceparent": PARENT, "tracestate": "vendor=1"}
    assert read_trace([f" {PARENT}\t"]).headers == {"traceparent": PARENT}


def test_without_one_there_is_no_trace() -> None:
    assert not NO_TRACE
    assert (NO_TRACE.trace_id, NO_TRACE.headers) == ("", {})
    assert read_trace([], ["vendor=1"]) is NO_TRACE


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00-1-2-01",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + "0",
        PARENT + "-00",  # version 00 has no more fields
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"0g-{TRACE_ID}-b7ad6b7169203331-01",
        PARENT + "\n",
        "01" + PARENT[2:] + "x",
        "01" + PARENT[2:] + "-" + "a" * MAX_TRACEPARENT,
        "01" + PARENT[2:] + "-\x00",
        "٠٠" + PARENT[2:],
    ],
)
def test_what_is_not_a_traceparent_is_no_trace(parent: str) -> None:
    assert read_trace([parent], ["vendor=1"]) is NO_TRACE


def test_two_traceparents_are_no_trace() -> None:
    assert read_trace([PARENT, PARENT]) is NO_TRACE


@pytest.mark.parametrize("more", ["", "-", "-ab-cd"])
def test_a_later_version_may_have_more_fields(more: str) -> None:
    later = "cc" + PARENT[2:] + more
    assert read_trace([later]).traceparent == later


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        (["a=1,b=2"], "a=1,b=2"),
        ([" a=1 ,\t b=2,, "], "a=1,b=2"),
        (["a=1", "b=2"], "a=1,b=2"),
        (["tenant@vendor=x y", "a/b*c_-d=!"], "tenant@vendor=x y,a/b*c_-d=!"),
        (["a=1,a=2"], ""),
        (["a=1,B=2"], ""),
        (["a"], ""),
        (["a="], ""),
        (["a=1=2"], ""),
        (["a=\x7f"], ""),
        (["a=ü"], ""),
        (["=1"], ""),
        ([f"a={'1' * 257}"], ""),
        ([",".join(f"k{n}=1" for n in range(33))], ""),
        ([",".join(f"k{n}=1" for n in range(32))], ",".join(f"k{n}=1" for n in range(32))),
        (["a=1," + "," * 100_000], ""),
    ],
)
def test_a_tracestate_is_kept_if_it_is_valid(states: list[str], kept: str) -> None:
    assert read_trace([PARENT], states) == TraceContext(traceparent=PARENT, tracestate=kept)


def test_of_a_long_tracestate_the_long_members_go_first_and_then_the_last() -> None:
    long, short = f"long={'1' * 200}", [f"k{n}={'1' * 60}" for n in range(9)]
    assert read_trace([PARENT], [",".join([*short[:3], long])]).tracestate.endswith(long)
    kept = read_trace([PARENT], [",".join([long, *short])]).tracestate
    assert kept == ",".join(short[:8])
    assert len(kept) <= MAX_TRACESTATE


# -- tenants and callers that no store could keep --------------------------------------------------


WRONG = ["t" * (LONGEST_ID + 1), "é" * LONGEST_ID, "a\0b"]
LONGEST = "t" * LONGEST_ID


async def test_a_tenant_that_cannot_be_kept_is_refused() -> None:
    service = Scripted()
    app = app_of(service)
    async with serving(app) as url:
        for wrong in WRONG:
            refused = await post(url, call("GetTask", {"id": "t-1", "tenant": wrong}))
            assert refused.error["code"] == -32602
            assert refused.error["message"].startswith("tenant: ")
            refused = await ask(
                url, "GET", f"/{quote(wrong)}/tasks/t-1", b"", {"A2A-Version": "1.0"}
            )
            assert refused.status == 400
            assert b"tenant: " in refused.body
        assert service.asked == []
        assert "result" in (await post(url, call("GetTask", {"id": "t", "tenant": LONGEST}))).json
    async with rpc_to(app) as rpc:
        for wrong in WRONG:
            refusal = await rpc.refused("GetTask", GetTaskRequest(id="t-1", tenant=wrong))
            assert refusal.status == "INVALID_ARGUMENT"
            assert type(refusal.error) is InvalidParamsError
            assert refusal.words.startswith("tenant: ")


@pytest.mark.parametrize(
    "caller",
    [
        *[Caller(id=name, authenticated=True) for name in [*WRONG, "a\x1fb", "a\nb", "a\x7f"]],
        *[Caller("bob", True, issuer=issuer) for issuer in [*WRONG, "a\x1fb", "a\x01"]],
        Caller(id="a\x1fbob"),
    ],
    ids=lambda caller: repr((caller.issuer or caller.id)[:9]),
)
async def test_a_caller_who_cannot_be_told_from_others_is_not_let_in(caller: Caller) -> None:
    service = Scripted()
    app = app_of(service, identify=lambda scope: caller)
    async with serving(app) as url:
        refused = await post(url, call("GetTask"))
        assert (refused.status, refused.error["code"]) == (401, -32010)
        assert str(LONGEST_ID) in refused.error["message"]
    async with rpc_to(app) as rpc:
        refusal = await rpc.refused("GetTask", GetTaskRequest(id="t-1"))
        assert type(refusal.error) is UnauthenticatedError
    assert service.asked == []


async def test_an_issuer_vouches_for_an_id() -> None:
    service = Scripted()
    app = app_of(service, identify=lambda scope: Caller(issuer="https://login.example"))
    async with serving(app) as url:
        refused = await post(url, call("GetTask"))
        assert (refused.status, refused.error["code"]) == (401, -32010)
        assert "an issuer but no id" in refused.error["message"]
    assert service.asked == []


# -- middleware around the app: in order, around every HTTP request, and around nothing else -------


CARD = "/.well-known/agent-card.json"


class Noting:
    """Adds its name to a header of every answer."""

    def __init__(self, app, name, told=None):
        self.app, self.name, self.told = app, name, told if told is not None else []

    async def __call__(self, scope, receive, send):
        self.told.append(scope["type"])

        async def named(message):
            if message["type"] == "http.response.start":
                headers = dict(message["headers"])
                way = [headers[b"x-way"]] if b"x-way" in headers else []
                headers[b"x-way"] = b", ".join([*way, self.name.encode()])
                message["headers"] = list(headers.items())
            await send(message)

        await self.app(scope, receive, named)


async def get(url, path):
    return await ask(url, "GET", path)


def agent_of(**options):
    agent = Agent("Told", **options)

    @agent.skill(default=True)
    async def stream(turn: Turn):
        for n in range(5):
            yield f"{n} "

    @agent.skill(replies="message")
    async def whose(turn: Turn) -> str:
        return turn.caller.id

    return agent


async def test_the_first_is_outermost():
    told = []
    middleware = [Middleware(Noting, "outer", told=told), lambda app: Noting(app, "inner", told)]
    async with serving(app_of(Scripted(), middleware=middleware)) as url:
        for answer in (await post(url, call()), await get(url, CARD), await get(url, "/nowhere")):
            assert answer.headers["x-way"] == "inner, outer"
    assert told == ["http"] * 6


async def test_streams_and_calls_go_through():
    agent = agent_of()
    app = parley.asgi(agent, middleware=[Middleware(Noting, "one"), GZipMiddleware])
    async with serving(app) as url, parley.connect(url) as remote:
        events = [event async for event in remote.stream("go")]
        assert events[-1].status.state.is_terminal
        assert (await remote.send("go")).text == "0 1 2 3 4 "


async def test_middleware_of_requests_and_responses_may_stand_there():
    """Starlette's BaseHTTPMiddleware, which FastAPI's ``@app.middleware`` makes."""

    async def guard(request, call_next):
        if "x-key" not in request.headers:
            return PlainTextResponse("no key", 401)
        answer = await call_next(request)
        answer.headers["x-way"] = "guarded"
        return answer

    app = parley.asgi(agent_of(), middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)])
    async with serving(app) as url:
        assert (await get(url, CARD)).status == 401
        async with parley.connect(url, headers={"x-key": "1"}) as remote:
            events = [event async for event in remote.stream("go")]
            assert events[-1].status.state.is_terminal


async def test_it_may_say_who_calls():
    """``caller`` reads what middleware wrote into the scope, as with Starlette's own."""

    class Login:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            scope["user"] = dict(scope["headers"])[b"x-user"].decode()
            await self.app(scope, receive, send)

    def who(scope):
        return Caller(scope["user"], True)

    app = parley.asgi(agent_of(), middleware=[Middleware(Login)], caller=who)
    headers = {"x-user": "ada"}
    async with serving(app) as url, parley.connect(url, headers=headers) as remote:
        assert (await remote.send("who?", metadata={"skill": "whose"})).text == "ada"


async def test_the_app_stays_what_it_is():
    """It can be mounted, drained, and served over gRPC, which middleware is not around."""
    told = []
    app = parley.asgi(agent_of(), middleware=[Middleware(Noting, "one", told=told)])
    assert app.lifespan
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        trusted = await grpc_of(url)
        told.clear()
        async with parley.connect(url, binding="GRPC", trust_origins=trusted) as remote:
            cards = len(told)
            assert (await remote.send("go")).text == "0 1 2 3 4 "
            assert told == ["http"] * cards
        assert (await get(url, "/health/ready")).status == 200
        app.lifecycle.drain()
        assert (await post(url, call("SendMessage"))).json["error"]["message"]


async def dispatch(request, call_next): ...


async def forgets_to_return(app): ...


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Middleware(Noting, "one"), r"is a list: write middleware=\[Middleware\(Noting, ...\)\]"),
        (Noting, r"is a list: write middleware=\[Noting\]"),
        ([("gzip", 3)], "a middleware is Starlette's"),
        ([Middleware(Noting)], r"Middleware\(Noting, ...\) cannot be made: .*'name'"),
        ([dispatch], "dispatch cannot be made: .*BaseHTTPMiddleware, dispatch"),
        ([forgets_to_return], "forgets_to_return returned .*coroutine"),
        ([lambda app: None], "returned None"),
    ],
)
def test_what_is_no_middleware_is_refused_at_once(given, words):
    with pytest.raises(TypeError, match=words):
        parley.asgi(agent_of(), middleware=given)
