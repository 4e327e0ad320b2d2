"""Replicas that only run turns, and those that only take messages in."""

from __future__ import annotations

import asyncio

import pytest

import parley
from parley import Agent, Execution, Task, TaskState, Turn
from parley.host.app import serve
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.server.sockets import ListenError
from parley.store.memory import MemoryLogs, MemoryTaskStore
from tests.contract.conftest import past_the_card
from tests.kit.grpc import HI
from tests.kit.http import JSON, ask, call
from tests.kit.servers import WAYS

pytestmark = pytest.mark.anyio

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
