"""Data of a request: version, extensions, traces and ids; and additions of middleware."""

from __future__ import annotations

import pytest
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse

import parley
from parley import Agent, Turn
from parley.model.errors import UnauthenticatedError
from parley.model.ids import LONGEST_ID
from parley.model.operations import GetTaskRequest
from parley.model.service import NO_TRACE, Caller, TraceContext
from parley.server.app import Settings
from parley.server.dispatch import MAX_TRACEPARENT, read_trace
from parley.server.run import serving
from tests.kit.grpc import rpc_to
from tests.kit.http import ask, call, post
from tests.kit.scripted import Scripted, app_of, card_of, extension

pytestmark = pytest.mark.anyio


async def test_a_setting_serves_requests_without_a_version():
    async with serving(app_of(settings=Settings(missing_version="1.0"))) as url:
        response = await ask(url, "POST", "/", call(), {"Content-Type": "application/json"})
        assert "result" in response.json
        # The setting covers only a missing version: a named version is still rejected.
        assert "error" in (await post(url, call(), {"A2A-Version": "0.3"})).json


OTHER = "urn:example:letters:v2"


@pytest.fixture
async def extended(service):
    card = card_of(extensions=(extension(), extension(uri=OTHER)))
    async with serving(app_of(service, card=card)) as address:
        yield address


# -- traces are read from their headers as in the W3C Trace Context --------------------------------


TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


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


@pytest.mark.parametrize("more", ["", "-", "-ab-cd"])
def test_a_later_version_may_have_more_fields(more: str) -> None:
    later = "cc" + PARENT[2:] + more
    assert read_trace([later]).traceparent == later


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        (["user=1, plan = gold;tier=2;x"], "user=1,plan = gold;tier=2;x"),
        (["a=1", "b=%20"], "a=1,b=%20"),
        (["a"], ""),
        (["a=1,,b=2"], ""),
        (['a="1"'], ""),
        (["a=é"], ""),
        (["a=" + "b" * 8190], "a=" + "b" * 8190),
        (["a=" + "b" * 8191], ""),
        ([",".join(f"a{n}=1" for n in range(64))], ",".join(f"a{n}=1" for n in range(64))),
        ([",".join(f"a{n}=1" for n in range(65))], ""),
    ],
    ids=lambda each: str(each)[:20],
)
def test_baggage_is_kept_whole_or_dropped(headers: list[str], kept: str) -> None:
    assert read_trace([PARENT], [], headers) == TraceContext(traceparent=PARENT, baggage=kept)
    assert read_trace([], [], headers).headers == ({"baggage": kept} if kept else {})


# -- tenants and callers that no store can keep ----------------------------------------------------


WRONG = ["t" * (LONGEST_ID + 1), "é" * LONGEST_ID, "a\0b"]


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


# -- middleware around the app: in order, around every HTTP request, and nothing else --------------


CARD = "/.well-known/agent-card.json"


class Noting:
    """Adds its name to a header of every response."""

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


async def test_middleware_of_requests_and_responses_may_stand_there():
    """Starlette's BaseHTTPMiddleware, as created by FastAPI's ``@app.middleware``."""

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
