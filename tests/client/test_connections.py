"""Connections: their number, the card's effect on them, and the blocking client."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from typing import Any

import pytest

import parley
from parley import Agent, Turn
from parley.client import RemoteAgent, SyncRemoteAgent, connect_sync
from parley.client.errors import ConnectionClosed, Timeout, Unreachable
from parley.client.message import to_message
from parley.client.push import RemotePushConfigs
from parley.client.retry import Retry
from parley.client.sync import SyncRemotePushConfigs
from parley.model.errors import (
    A2AError,
    ExtensionSupportRequiredError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from parley.model.operations import OPERATIONS, Operation
from parley.server.run import serving
from parley.testing import FaultProxy
from tests.client.log_agent import REPORT, LogAgent, fold_of, plain
from tests.kit.scripted_server import HI, Exchange, ScriptedServer, card, scripted, talk
from tests.kit.scripted_server import Agent as ScriptedAgent

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["JSONRPC", "HTTP+JSON"])
async def counted(request: Any) -> AsyncIterator[tuple[parley.RemoteAgent, FaultProxy]]:
    """A client, and a proxy that has one list item for each opened connection."""
    async with (
        serving(parley.asgi(agent, drain=0.0)) as url,
        FaultProxy(url.replace("http", "tcp")) as proxy,
    ):
        card = {
            "name": "Echo",
            "description": "Says it again.",
            "version": "1",
            "capabilities": {"streaming": True},
            "skills": [],
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "supportedInterfaces": [
                {
                    "url": f"http://{proxy.url}",
                    "protocolBinding": request.param,
                    "protocolVersion": "1.0",
                }
            ],
        }
        async with parley.connect(card) as remote:
            yield remote, proxy


agent = Agent(name="Echo", description="Says it again.")


@agent.skill
async def say(turn: Turn) -> Any:
    """Says it again."""
    if turn.text != "list":
        return turn.text
    async with turn.stream(name="list") as out:
        for word in ("one", "two", "three"):
            await out.write(word)
    return None


# -- operations that the card does not declare are not called (specification §3.3.4) ---------------


REQUIRED = {"uri": "urn:example:signed:v2", "required": True}


GUARDED = [operation for operation in OPERATIONS if operation.capability]


REQUESTS: dict[str, dict[str, Any]] = {
    "CreateTaskPushNotificationConfig": {"task_id": "t", "url": "https://x.example"},
    "GetTaskPushNotificationConfig": {"task_id": "t", "id": "p"},
    "ListTaskPushNotificationConfigs": {"task_id": "t"},
    "DeleteTaskPushNotificationConfig": {"task_id": "t", "id": "p"},
    "SubscribeToTask": {"id": "t"},
}


def request_of(operation: Operation) -> Any:
    if operation.name == "SendStreamingMessage":
        return operation.request(message=to_message("hi"))
    return operation.request(**REQUESTS.get(operation.name, {}))


@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.name)
async def test_what_the_card_does_not_declare_is_refused_before_it_is_sent(
    operation: Operation,
) -> None:
    expected: type[A2AError] = UnsupportedOperationError
    if operation.capability == "push_notifications":
        expected = PushNotificationNotSupportedError
    async with talk(ScriptedAgent(HI, capabilities={})) as (remote, server):
        before = len(server.exchanges)
        answer = getattr(remote.service, operation.method)(request_of(operation), remote.context)
        with pytest.raises(expected, match=r"capabilities\."):
            await (anext(answer) if operation.streaming else answer)
        assert len(server.exchanges) == before


async def test_an_unknown_required_extension_is_named_before_anything_is_sent() -> None:
    agent = ScriptedAgent(HI, capabilities={"extensions": [REQUIRED]})
    async with talk(agent) as (remote, server):
        before = len(server.exchanges)
        for call in (remote.send("hi"), remote.get("t"), remote.list()):
            with pytest.raises(ExtensionSupportRequiredError) as raised:
                await call
            assert raised.value.metadata == {"requiredExtensions": REQUIRED["uri"]}
        assert len(server.exchanges) == before


async def test_another_version_of_a_required_extension_does_not_do() -> None:
    agent = ScriptedAgent(HI, capabilities={"extensions": [REQUIRED]})
    async with talk(agent, extensions=["urn:example:signed:v1"]) as (remote, _):
        with pytest.raises(ExtensionSupportRequiredError):
            await remote.send("hi")


async def test_a_required_extension_that_is_asked_for_goes_with_every_request() -> None:
    agent = ScriptedAgent(HI, capabilities={"extensions": [REQUIRED]})
    async with talk(agent, extensions=[REQUIRED["uri"]]) as (remote, server):
        assert str(await remote.send("hi")) == "hi"
        assert server.exchanges[-1].headers["a2a-extensions"] == REQUIRED["uri"]


# -- the blocking client ---------------------------------------------------------------------------


AT_ONCE = Retry(calls=3, streams=8, first=0.0, limit=0.0)


@contextmanager
def served(handler: Callable) -> Iterator[ScriptedServer]:
    """Serve a scripted agent in a thread."""
    ready: list[ScriptedServer] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with scripted(handler) as server:
            server.loop = asyncio.get_running_loop()
            ready.append(server)
            started.set()
            await asyncio.to_thread(stop.wait)

    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(asyncio.run, serve())
        assert started.wait(5)
        try:
            yield ready[0]
        finally:
            stop.set()
            serving.result(5)


async def echo(exchange: Exchange) -> None:
    if exchange.method == "GET":
        value = card(f"http://{exchange.headers['host']}")
        value["capabilities"]["pushNotifications"] = True
        await exchange.json(value)
        return
    match exchange.call["method"]:
        case "SendMessage":
            reply = {"messageId": "r", "role": "ROLE_AGENT"}
            await exchange.result(
                {"message": {**reply, "parts": exchange.params["message"]["parts"]}}
            )
        case "GetTask" if exchange.params["id"] == "slow":
            await exchange.never()
        case "GetTask":
            await exchange.error(-32001, "no such task")
        case "ListTasks":
            last = exchange.params.get("pageToken") == "two"
            page = {"tasks": [plain(fold_of(REPORT))], "pageSize": 1, "totalSize": 2}
            await exchange.result({**page, "nextPageToken": "" if last else "two"})
        case "ListTaskPushNotificationConfigs":
            config = {"id": "p-1", "taskId": "t-1", "url": "https://hooks.example"}
            await exchange.result({"configs": [config]})
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize(
    ("original", "twin"),
    [(RemoteAgent, SyncRemoteAgent), (RemotePushConfigs, SyncRemotePushConfigs)],
)
def test_the_twin_has_the_methods_of_the_original_with_their_signatures(
    original: type, twin: type
) -> None:
    members = [(n, m) for n, m in inspect.getmembers(original) if n[0] != "_" and n != "aclose"]
    assert len(members) > 4
    for name, member in members:
        if callable(member):
            assert inspect.signature(getattr(twin, name)) == inspect.signature(member)
            assert getattr(twin, name).__doc__ == member.__doc__
        else:
            assert isinstance(getattr(twin, name), property)


def test_calls_block_and_raise_what_the_original_raises() -> None:
    with served(echo) as server, connect_sync(server.url, retries=AT_ONCE) as agent:
        assert agent.card.name == "Scripted agent"
        assert (agent.interface.url, agent.version) == (server.url + "/rpc", "1.0")
        reply = agent.send("hello")
        assert reply.task is None
        assert str(reply) == "hello"
        assert [task.id for task in agent.tasks()] == ["t-1", "t-1"]
        assert [config.id for config in agent.push.list("t-1")] == ["p-1"]
        with pytest.raises(TaskNotFoundError):
            agent.get("t-9")
        with pytest.raises(Timeout):
            agent.wait("slow", timeout=0.05)
        with pytest.raises(ValueError, match="nothing to send"):
            agent.send("")
    with pytest.raises(Unreachable):
        connect_sync(server.url, retries=0)


def test_closing_ends_calls_under_way_and_the_thread() -> None:
    def get_slowly() -> None:
        agent.get("slow")

    with served(echo) as server, ThreadPoolExecutor(1) as pool:
        agent = connect_sync(server.url)
        waiting = pool.submit(get_slowly)
        asyncio.run_coroutine_threadsafe(server.until_asked(2), server.loop).result()
        agent.close()
        with pytest.raises(ConnectionClosed):
            waiting.result(5)
        with pytest.raises(ConnectionClosed):
            agent.send("too late")
        agent.close()
    assert not running()


def test_a_forgotten_agent_ends_its_thread_but_not_under_its_stream() -> None:
    with served(LogAgent(REPORT, [], numbered=True)) as server:
        assert list(connect_sync(server.url).stream("go")) == REPORT
        gc.collect()
        assert not running()


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "parley-client"]


async def test_a_stream_that_is_left_early_costs_its_own_connection(counted) -> None:
    remote, proxy = counted
    for _ in range(3):
        async with aclosing(remote.stream("list")) as events:
            assert await anext(events)
        await remote.send("hello")
    assert len(proxy.requests) <= 4


async def test_calls_one_after_another_share_a_connection(counted) -> None:
    remote, proxy = counted
    for number in range(50):
        assert (await remote.send(f"message {number}")).text == f"message {number}"
        with pytest.raises(TaskNotFoundError):
            await remote.get(f"none-{number}")
    assert len(proxy.requests) == 1


async def test_streams_that_were_read_to_their_end_share_a_connection(counted) -> None:
    remote, proxy = counted
    for _ in range(5):
        assert [event async for event in remote.stream("list")]
        await remote.send("hello")
    assert len(proxy.requests) == 1


async def test_calls_at_once_have_a_connection_each_and_keep_it(counted) -> None:
    remote, proxy = counted
    for _ in range(5):
        await asyncio.gather(*[remote.send(f"message {number}") for number in range(8)])
    assert 1 < len(proxy.requests) <= 8
