"""Start, health, drain and stop, also of replicas that do one half of the work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

import pytest

import parley
from parley import Agent, Execution, Task, Turn
from parley.host.app import serve
from parley.model.service import StreamItem
from parley.model.tasks import TaskState
from parley.server.app import Settings
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.server.sockets import ListenError
from parley.store.memory import MemoryLogs, MemoryTaskStore
from tests.contract.conftest import past_the_card
from tests.kit.grpc import HI
from tests.kit.http import JSON, WAIT, ask, call, connection, id_of, post
from tests.kit.scripted import Scripted, Standstill, app_of, chunk, task
from tests.kit.servers import WAYS
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


def mounted(app):
    """The app as a server sees it that knows nothing of lifespans."""

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


async def test_a_first_request_that_is_cancelled_does_not_take_the_start_with_it():
    gate = asyncio.Event()

    async def startup():
        await gate.wait()

    app = app_of(startup=startup)
    first = asyncio.create_task(app.lifecycle.start())
    second = asyncio.create_task(app.lifecycle.start())
    await asyncio.sleep(0)
    first.cancel()
    gate.set()
    await asyncio.wait_for(second, WAIT)
    assert first.cancelled()
    assert app.lifecycle.started


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


async def test_the_lifespan_raises_what_the_startup_raises():
    async def startup():
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk"):
        async with serving(app_of(startup=startup)):
            pass


async def test_an_app_can_be_started_again_after_its_end():
    life = []

    async def startup():
        life.append("start")

    async def shutdown():
        life.append("stop")

    app = app_of(startup=startup, shutdown=shutdown)
    for _ in range(2):
        async with serving(app) as url:
            assert "result" in (await post(url, call())).json
            assert (await ask(url, "GET", "/health/ready")).status == 200
    assert life == ["start", "stop", "start", "stop"]


# Health


async def test_a_server_that_has_started_is_live_and_ready(url):
    for path, word in (("/health/live", "live"), ("/health/ready", "ready")):
        response = await ask(url, "GET", path)
        assert response.status == 200
        assert response.json == {"status": word}
        assert response.headers["cache-control"] == "no-store"
        assert (await ask(url, "HEAD", path)).status == 200
        assert (await post(url, call(), path=path)).status == 405


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
        # The body ends as HTTP wants it, which is more than a connection that is cut.
        assert [frame async for frame in frames] == []
        await asyncio.wait_for(still.closed.wait(), WAIT)


@pytest.mark.parametrize("said", [1, 2])
async def test_draining_leaves_nobody_with_the_question_that_was_answered(said):
    events = [StreamItem(task(TaskState.INPUT_REQUIRED), 4), StreamItem(chunk("So"), 5)][:said]
    still = Standstill(*events)
    app = app_of(Scripted(send_streaming_message=still))
    async with serving(app) as url, connection(url) as http:
        await http.request("POST", "/", call("SendStreamingMessage"), JSON)
        await http.head()
        frames = http.frames()
        numbers = [id_of(await anext(frames)) for _ in events]
        app.lifecycle.drain()
        rest = [json.loads(frame.partition("data: ")[2]) async for frame in frames]
    assert numbers == [str(event.seq) for event in events]
    assert [each["error"]["code"] for each in rest] == ([-32012] if said == 1 else [])


async def test_draining_sends_what_has_gathered_first():
    many = Standstill(*[StreamItem(task(), number) for number in range(1, 51)])
    app = app_of(Scripted(subscribe_to_task=many))
    async with serving(app) as url, connection(url) as http:
        await http.subscribe()
        frames = http.frames()
        numbers = [id_of(await anext(frames))]
        app.lifecycle.drain()
        numbers += [id_of(frame) async for frame in frames]
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]


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


async def test_a_draining_server_takes_no_new_work_but_answers_questions():
    drained = []
    service = Scripted()
    app = app_of(service, on_drain=lambda: drained.append(True))
    async with serving(app) as url:
        app.lifecycle.drain()
        app.lifecycle.drain()
        assert drained == [True]
        for method in ("SendMessage", "SendStreamingMessage", "SubscribeToTask"):
            response = await post(url, call(method))
            assert response.status == 503
            assert response.error["code"] == -32012
            assert response.headers["retry-after"] == "1"
        assert "result" in (await post(url, call("GetTask"))).json
        ready = await ask(url, "GET", "/health/ready")
        assert (ready.status, ready.json) == (503, {"status": "draining"})
        assert (await ask(url, "GET", "/health/live")).status == 200


async def test_the_end_of_a_server_drains_it_first():
    still = Standstill(StreamItem(task(), 1))
    order = []

    async def shutdown():
        order.append("shutdown")

    app = app_of(
        Scripted(subscribe_to_task=still),
        on_drain=lambda: order.append("drain"),
        shutdown=shutdown,
        settings=Settings(keep_alive=3600),
    )
    async with contextlib.AsyncExitStack() as stack:
        async with serving(app) as url:
            http = await stack.enter_async_context(connection(url))
            await http.subscribe()
            frames = http.frames()
            await anext(frames)
        assert [frame async for frame in frames] == []
    assert order == ["drain", "shutdown"]


async def test_a_request_that_outlives_the_grace_period_is_told_so(caplog):
    stuck = asyncio.Event()

    async def forever(request, context):
        stuck.set()
        await asyncio.get_running_loop().create_future()

    app = app_of(Scripted(send_message=forever))
    with caplog.at_level(logging.INFO):
        async with serving(app, grace=0) as url:
            waiting = asyncio.create_task(post(url, call()))
            await asyncio.wait_for(stuck.wait(), WAIT)
        response = await asyncio.wait_for(waiting, WAIT)
    assert response.status == 503
    assert response.error["code"] == -32012
    assert "Traceback" not in caplog.text


# -- replicas that only run turns, and those that only take messages in ----------------------------


BOUND = 60.0

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
    """What replicas share."""
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
        ("GET", "/docs", {}, b""),
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


async def test_a_worker_is_not_served_over_grpc(logs: MemoryLogs) -> None:
    app = parley.asgi(agent, store=MemoryTaskStore(logs=logs), role="worker")
    with pytest.raises(ListenError, match="no agent to serve over gRPC"):
        async with serving(app, grpc=GrpcOptions(port=0)):
            pass
    with pytest.raises(ValueError, match="a worker serves nothing over gRPC"):
        serve(agent, store=MemoryTaskStore(logs=logs), role="worker", grpc_port=0)


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_without_a_worker_senders_have_their_task_in_time(
    logs: MemoryLogs, binding: str, version: str
) -> None:
    """And it waits in the store for one that comes."""
    app = parley.asgi(agent, store=MemoryTaskStore(logs=logs), role="api")
    way = {"binding": binding, "version": version, "idempotent": False}
    async with (
        asyncio.timeout(BOUND),
        serving(app, grpc=GrpcOptions(port=0)) as url,
        parley.connect(url, **way) as remote,  # type: ignore[arg-type]
    ):
        reply = await remote.send("now", message_metadata={"skill": "say"})
        assert reply.text == "It is noon."  # type: ignore[union-attr]
        asked = await past_the_card(remote, "SendMessage", HI)
        assert isinstance(asked, Task)
        assert asked.state is TaskState.SUBMITTED
        at_once = await remote.send("now", return_immediately=True)
        assert isinstance(at_once, Task)
        assert at_once.state is TaskState.SUBMITTED
        stream = remote.stream("now").__aiter__()
        first = await anext(stream)
        assert isinstance(first, Task)
        assert first.state is TaskState.SUBMITTED
        assert (await remote.cancel(at_once.id)).state is TaskState.CANCELED
        worker = parley.asgi(agent, store=MemoryTaskStore(logs=logs), role="worker")
        async with serving(worker):
            assert (await remote.wait(asked.id)).state is TaskState.COMPLETED
            rest = [event async for event in stream]
            assert rest[-1].status.state is TaskState.COMPLETED  # type: ignore[union-attr]
