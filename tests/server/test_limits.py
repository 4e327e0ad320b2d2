"""Every limit over every binding and version: the error, Retry-After, and no side effects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Execution, Message, Part, Role, TaskState, Turn
from parley.client import RemoteAgent
from parley.client.retry import Retry
from parley.model.errors import OverloadedError
from parley.model.operations import (
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.server.app import App, Settings
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.contract.conftest import past_the_card
from tests.kit.servers import WAYS, grpc_of
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

BOUND = 60.0


@pytest.fixture(params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of a client without retries."""
    binding, version = request.param
    retries = Retry(calls=0, streams=0)
    return {"binding": binding, "version": version, "retries": retries, "idempotent": False}


class Gate:
    """An agent whose turns wait at a gate."""

    def __init__(self, **options: Any) -> None:
        self.opened = asyncio.Event()
        self.runs = 0
        self.agent = Agent(
            "Gate", description="Waits", execution=Execution(cancel_grace=0.2, **options)
        )

        @self.agent.skill(replies="task", default=True)
        async def wait(turn: Turn) -> str:
            """Waits."""
            self.runs += 1
            await turn.working("waiting")
            await self.opened.wait()
            return "done"

        @self.agent.skill(replies="message")
        async def say(turn: Turn) -> str:
            """Waits, and replies directly."""
            self.runs += 1
            await self.opened.wait()
            return "said"

        @self.agent.skill(replies="task")
        async def ask(turn: Turn) -> str:
            """Asks, and waits."""
            answer = await turn.ask("Well?")
            self.runs += 1
            await self.opened.wait()
            return answer.text

    async def until_run(self, times: int) -> None:
        """Wait until a number of turns have started."""
        async with asyncio.timeout(BOUND):
            await until(lambda: self.runs >= times)


def who(scope: Any) -> Caller:
    name = dict(scope["headers"]).get(b"x-user", b"").decode()
    return Caller(id=name, authenticated=bool(name))


class Served:
    """A server and its clients, one for each caller."""

    def __init__(self, stack: AsyncExitStack, app: App, url: str, way: dict[str, Any]) -> None:
        self._stack = stack
        self.app = app
        self._url = url
        self._way = way
        self._clients: dict[str, RemoteAgent] = {}

    async def as_(self, user: str = "ada") -> RemoteAgent:
        if user not in self._clients:
            given = {"headers": {"x-user": user}, "trust_origins": await grpc_of(self._url)}
            remote = parley.connect(self._url, **given, **self._way)
            self._clients[user] = await self._stack.enter_async_context(remote)
        return self._clients[user]

    async def tasks(self) -> int:
        """Return the number of tasks, even if the version cannot list tasks."""
        service = next(iter(self.app.agents.values())).dispatcher
        return len(service._agent.endpoint.service._store._logs)  # type: ignore[union-attr]


@asynccontextmanager
async def serve(agent: Agent, way: dict[str, Any], **options: Any) -> AsyncIterator[Served]:
    app = parley.asgi(agent, caller=who, **options)
    async with (
        asyncio.timeout(BOUND),
        AsyncExitStack() as stack,
        serving(app, grpc=GrpcOptions(port=0)) as url,
        stack,
    ):
        yield Served(stack, app, url, way)


def saying(skill: str = "wait", *, at_once: bool = False, **more: Any) -> SendMessageRequest:
    message = Message(
        message_id="m", role=Role.USER, parts=(Part(text="x"),), metadata={"skill": skill}, **more
    )
    configuration = SendMessageConfiguration(return_immediately=at_once)
    return SendMessageRequest(message=message, configuration=configuration)


async def refused(
    remote: RemoteAgent, name: str, request: Any, words: str, *, after: int = 1
) -> None:
    """Send a request that the server must reject for now."""
    with pytest.raises(OverloadedError, match=words) as caught:
        await past_the_card(remote, name, request)
    assert caught.value.retry_after == after


async def test_turns_that_stand_in_line(way: dict[str, Any]) -> None:
    gate = Gate(max_running=1, max_queued=2)
    async with serve(gate.agent, way) as served:
        ada, eve = await served.as_("ada"), await served.as_("eve")
        asked = await past_the_card(eve, "SendMessage", saying("ask"))
        tasks = [await past_the_card(ada, "SendMessage", saying(at_once=True)) for _ in range(3)]
        kept = await served.tasks()
        for name in ("SendMessage", "SendStreamingMessage"):
            await refused(eve, name, saying(), "2 turns are waiting already")
            await refused(eve, name, saying(task_id=asked.id), "2 turns are waiting already")
        assert (gate.runs, await served.tasks()) == (1, kept)
        gate.opened.set()
        for task in tasks:
            done = await ada.wait(task.id)
            assert done.state is TaskState.COMPLETED
            assert [m.role for m in done.history].count(Role.USER) == 1
        # The task never sees the rejected message, and accepts the next.
        assert (await eve.get(asked.id)) == asked
        assert (await eve.send("yes", task_id=asked.id)).state is TaskState.COMPLETED


async def test_streams_that_are_open(way: dict[str, Any]) -> None:
    gate = Gate()
    async with serve(gate.agent, way, settings=Settings(max_streams=2)) as served:
        ada, eve, bob = [await served.as_(name) for name in ("ada", "eve", "bob")]
        task = await past_the_card(ada, "SendMessage", saying(at_once=True))
        other = await past_the_card(bob, "SendMessage", saying(at_once=True))
        await gate.until_run(2)
        one = ada.subscribe(task.id).__aiter__()
        await anext(one)
        subscribing = SubscribeToTaskRequest(id=task.id)
        await refused(ada, "SubscribeToTask", subscribing, "1 streams are open for this caller")
        await refused(ada, "SendStreamingMessage", saying(), "1 streams are open for this caller")
        two = eve.stream("x").__aiter__()
        await anext(two)
        await gate.until_run(3)
        subscribing = SubscribeToTaskRequest(id=other.id)
        await refused(bob, "SubscribeToTask", subscribing, "2 streams are open, which is all")
        await refused(bob, "SendStreamingMessage", saying(), "2 streams are open, which is all")
        assert (gate.runs, await served.tasks()) == (3, 3)
        gate.opened.set()
        for stream in (one, two):
            assert [event async for event in stream][-1].status.state is TaskState.COMPLETED
        assert (await bob.wait(other.id)).state is TaskState.COMPLETED
