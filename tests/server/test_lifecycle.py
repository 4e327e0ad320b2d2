"""Start, health, drain and stop, also of replicas with only one role."""

from __future__ import annotations

import asyncio

import pytest

import parley
from parley import Agent, Execution, Turn
from parley.model.service import StreamItem
from parley.server.run import serving
from parley.store.memory import MemoryLogs, MemoryTaskStore
from tests.kit.http import JSON, WAIT, ask, call, connection, id_of, post
from tests.kit.scripted import Scripted, Standstill, app_of, task
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


def mounted(app):
    """The app under a server without lifespan support."""

    async def outer(scope, receive, send):
        if scope["type"] == "http":
            await app(scope, receive, send)
        else:
            raise RuntimeError("no lifespan here")

    return outer


# Start


async def test_first_requests_at_once_share_one_start():
    starts = 0
    gate = asyncio.Event()

    async def startup():
        nonlocal starts
        starts += 1
        await gate.wait()

    service = Scripted()
    async with serving(mounted(app_of(service, startup=startup))) as url:
        requests = [asyncio.create_task(post(url, call(id=n))) for n in range(5)]
        await until(lambda: starts)
        assert service.asked == []
        gate.set()
        answers = await asyncio.gather(*requests)
    assert starts == 1
    assert all("result" in answer.json for answer in answers)


async def test_a_start_that_fails_is_tried_again_by_the_next_request(caplog):
    problems = [OSError("the disk is full")]

    async def startup():
        if problems:
            raise problems.pop()

    async with serving(mounted(app_of(startup=startup))) as url:
        refused = await post(url, call())
        assert refused.status == 503
        assert refused.error["code"] == -32012
        assert b"disk" not in refused.body
        assert "the disk is full" in caplog.text
        assert "result" in (await post(url, call())).json


# Health


async def test_a_server_is_ready_only_after_its_start_which_the_question_begins():
    gate = asyncio.Event()

    async with serving(mounted(app_of(startup=gate.wait))) as url:
        for _ in range(2):
            response = await ask(url, "GET", "/health/ready")
            assert response.status == 503
            assert response.json == {"status": "starting"}
        assert (await ask(url, "GET", "/health/live")).status == 200
        gate.set()
        await post(url, call())
        assert (await ask(url, "GET", "/health/ready")).status == 200


async def test_a_server_whose_store_is_away_is_live_and_not_ready():
    unavailable_reason = ["the store has been silent for 7 seconds"]
    app = app_of(unavailable_reason=lambda: unavailable_reason[0])
    async with serving(app) as url:
        for word in ("unavailable", "draining"):
            response = await ask(url, "GET", "/health/ready")
            assert (response.status, response.json) == (
                503,
                {"status": word, "reason": unavailable_reason[0]},
            )
            assert (await ask(url, "GET", "/health/live")).json == {"status": "live"}
            app.lifecycle.drain()
        app.lifecycle.draining = False
        unavailable_reason[0] = ""
        assert (await ask(url, "GET", "/health/ready")).json == {"status": "ready"}


# Drain


async def test_draining_ends_a_stream_cleanly_and_without_an_error():
    still = Standstill(StreamItem(task(), 1))
    app = app_of(Scripted(subscribe_to_task=still))
    async with serving(app) as url, connection(url) as http:
        await http.subscribe()
        frames = http.frames()
        assert id_of(await anext(frames)) == "1"
        app.lifecycle.drain()
        # The body ends with a valid HTTP terminator, unlike a cut connection.
        assert [frame async for frame in frames] == []
        await asyncio.wait_for(still.closed.wait(), WAIT)


async def test_a_stream_without_an_event_yet_is_refused_when_the_server_drains():
    still = Standstill()
    app = app_of(Scripted(subscribe_to_task=still))
    async with serving(app) as url, connection(url) as http:
        await http.request("POST", "/", call("SubscribeToTask"), JSON)
        async with asyncio.timeout(WAIT):
            await until(lambda: still.open)
        app.lifecycle.drain()
        response = await http.response()
    assert response.status == 503
    assert response.error["code"] == -32012


# -- replicas that only run turns, and replicas that only accept messages --------------------------

agent = Agent(
    "Clock",
    description="Tells the time",
    execution=Execution(blocking_timeout=1.0, cancel_grace=0.2),
)


@agent.skill(replies="task", default=True)
async def tell(turn: Turn) -> str:
    """Tells the time."""
    return "It is noon."


@agent.skill(replies="message")
async def say(turn: Turn) -> str:
    """Says it at once."""
    return "It is noon."


@pytest.fixture
def logs() -> MemoryLogs:
    """The shared state of replicas."""
    return MemoryLogs()


SENT = {"Content-Type": "application/json"}
OLD = {**SENT, "A2A-Version": "0.3"}
BODY = b'{"message": {}}'


@pytest.mark.parametrize(
    ("method", "path", "headers", "body"),
    [
        ("GET", "/", {}, b""),
        ("HEAD", "/", {}, b""),
        ("OPTIONS", "/", {}, b""),
        ("GET", "/.well-known/agent-card.json", {}, b""),
        ("GET", "/.well-known/agent.json", {}, b""),
        ("GET", "/", {"Accept": "text/html"}, b""),
        ("POST", "/", JSON, call("SendMessage")),
        ("POST", "/", JSON, call("SendStreamingMessage")),
        ("POST", "/", OLD, call("message/send", {"message": {}})),
        ("POST", "/", JSON, call("SendMessage", id=...)),
        ("POST", "/", JSON, b"no JSON"),
        ("POST", "/clock", JSON, call("GetTask")),
        ("POST", "/message:send", JSON, BODY),
        ("POST", "/message:stream", JSON, BODY),
        ("POST", "/v1/message:send", SENT, BODY),
        ("GET", "/tasks/t-1", JSON, b""),
        ("GET", "/v1/tasks/t-1", SENT, b""),
        ("DELETE", "/tasks/t-1/pushNotificationConfigs/c", JSON, b""),
    ],
)
async def test_a_worker_sends_everybody_elsewhere(
    logs: MemoryLogs, method: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    async with serving(parley.asgi(agent, store=MemoryTaskStore(logs=logs), role="worker")) as url:
        answer = await ask(url, method, path, body, headers)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        if method == "HEAD" or body == call("SendMessage", id=...):
            assert answer.body == b""
        elif b"jsonrpc" in body:
            assert (answer.error["code"], answer.json["id"]) == (-32012, 1)
            assert "is a worker" in answer.error["message"]
        elif path.startswith("/v1/"):
            assert (answer.json["code"], "is a worker" in answer.json["message"]) == (-32012, True)
        else:
            assert (answer.error["status"], answer.error["code"]) == ("UNAVAILABLE", 503)
            assert "is a worker" in answer.error["message"]
        for probe in ("/health/live", "/health/ready"):
            assert (await ask(url, "GET", probe)).status == 200
