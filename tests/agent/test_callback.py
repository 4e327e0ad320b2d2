"""``turn.callback``: somebody else completes an event that a turn waits for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

import parley
from parley import Agent, BlockingTurn, CallContext, Caller, Task, TaskState, Turn
from parley.model.errors import UnauthenticatedError
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.servers import grpc_of
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

PAID = {"amount": 9.5, "paid": True}


def shop(name: str = "Shop", **options: Any) -> Agent:
    agent = Agent(name, **options)

    @agent.skill(replies="task")
    async def order(turn: Turn) -> str:
        address = await turn.callback(turn.text)
        payment = await turn.wait_event(turn.text, message=address)
        return f"paid with {json.dumps(payment)}"

    @agent.skill(replies="task")
    def order_in_thread(turn: BlockingTurn) -> str:
        address = turn.callback(turn.text, expires=timedelta(hours=1))
        return f"paid with {json.dumps(turn.wait_event(turn.text, message=address))}"

    @agent.skill(replies="task")
    async def keep(turn: Turn) -> str:
        return await turn.callback(turn.text, expires=timedelta(milliseconds=1))

    return agent


async def call_back(url: str, value: Any = PAID) -> int:
    async with aiohttp.ClientSession() as session, session.post(url, json=value) as answer:
        return answer.status


async def address_of(remote: parley.RemoteAgent, task: Any) -> str:
    """Return the address that a task says it waits for."""
    async with asyncio.timeout(10):
        while True:
            found = await remote.get(task.id)
            if found.status.message is not None:
                return str(found.status.message.text)
            await let_time_pass(0.01)


async def ordered(remote: parley.RemoteAgent, text: str, skill: str = "order") -> tuple[Task, str]:
    task = await remote.send(text, metadata={"skill": skill}, return_immediately=True)
    assert isinstance(task, Task)
    return task, await address_of(remote, task)


@pytest.mark.parametrize("skill", ["order", "order_in_thread"])
async def test_the_turn_goes_on_with_what_was_posted(
    replicas: Callable[..., Any], skill: str
) -> None:
    async with replicas({"/shop": shop()}) as urls, parley.connect(f"{urls[0]}/shop") as remote:
        task, address = await ordered(remote, "payment:42", skill)
        assert address.startswith(f"{urls[0]}/shop/callbacks/")
        elsewhere = address.replace(urls[0], urls[-1])  # any replica takes it
        assert await call_back(elsewhere) == 204
        assert await call_back(address) == 204
        done = await remote.wait(task.id, timeout=20)
        assert (done.state, done.text) == (TaskState.COMPLETED, f"paid with {json.dumps(PAID)}")
        for value, status in ((PAID, 204), (dict(reversed(PAID.items())), 204), (None, 409)):
            assert await call_back(elsewhere, value) == status


async def test_it_may_come_before_the_turn_waits_and_after_its_end(
    replicas: Callable[..., Any],
) -> None:
    agent = Agent("Early")

    @agent.skill(replies="task")
    async def order(turn: Turn) -> str:
        address = await turn.callback(turn.text)
        await turn.step("post", call_back, address, "early")
        return str(await turn.wait_event(turn.text))

    async with replicas(agent) as urls, parley.connect(urls[0]) as remote:
        assert (await remote.send("payment:42")).text == "early"


async def test_an_expired_address_completes_nothing(replicas: Callable[..., Any]) -> None:
    async with replicas(shop()) as urls, parley.connect(urls[0]) as remote:
        address = (await remote.send("payment:42", metadata={"skill": "keep"})).text
        async with asyncio.timeout(10):
            while (status := await call_back(address, "late")) != 410:
                assert status == 204  # expiry is in whole seconds
                await let_time_pass(0.1)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_every_way_of_asking_over_http_gives_an_address(version: str, binding: str) -> None:
    async with (
        serving(parley.asgi(shop())) as url,
        parley.connect(url, binding=binding, version=version) as remote,
    ):
        task, address = await ordered(remote, "payment:42")
        assert await call_back(address) == 204
        assert (await remote.wait(task.id, timeout=10)).state is TaskState.COMPLETED


async def test_each_agent_and_tenant_has_addresses_of_its_own() -> None:
    agents = {"/one": shop("One"), "/two": shop("Two")}
    tenants = {"acme": (acme := shop("Acme")), "globex": acme}
    async with serving(parley.asgi(agents, tenants=tenants)) as url:
        addresses, tasks = {}, {}
        for name in ("one", "two", "acme", "globex"):
            async with parley.connect(f"{url}/{name}") as remote:
                tasks[name], addresses[name] = await ordered(remote, f"payment:{name}")
                assert addresses[name].startswith(f"{url}/{name}/callbacks/")
        for name, address in addresses.items():
            for other in addresses.keys() - {name}:
                assert await call_back(address.replace(f"/{name}/", f"/{other}/")) == 404
            assert await call_back(address) == 204


async def test_it_needs_no_caller_where_messages_do() -> None:
    def identify(scope: Any) -> Caller:
        if dict(scope["headers"]).get(b"x-user") is None:
            raise UnauthenticatedError("say who you are")
        return Caller("ada", authenticated=True)

    async with (
        serving(parley.asgi(shop(), caller=identify)) as url,
        parley.connect(url, headers={"x-user": "ada"}) as remote,
    ):
        task, address = await ordered(remote, "payment:42")
        assert await call_back(address) == 204
        assert (await remote.wait(task.id, timeout=10)).state is TaskState.COMPLETED


async def test_a_changed_address_is_answered_as_one_that_never_was() -> None:
    async with serving(parley.asgi(shop())) as url, parley.connect(url) as remote:
        task, address = await ordered(remote, "payment:42")
        before, _, token = address.rpartition("/")
        for changed in (token[:-1], token + "A", token.swapcase(), token.replace(".", "")):
            assert await call_back(f"{before}/{changed}") == 404
        assert (await remote.get(task.id)).state is TaskState.WORKING


async def test_over_grpc_the_server_needs_an_address_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(parley.asgi(shop()), grpc=GrpcOptions(port=0)) as url:
        trusted = await grpc_of(url)
        async with parley.connect(url, binding="GRPC", trust_origins=trusted) as remote:
            task = await remote.send("payment:42")
            assert task.state is TaskState.FAILED
    assert "give it with url=" in caplog.text


async def test_in_process_with_a_configured_address(talk: Callable[..., Any]) -> None:
    async with talk(shop()) as caller:
        task = await caller.task("k", request_metadata={"skill": "keep"})
        assert task.state is TaskState.FAILED  # and the log says why
        context = CallContext(base_url="https://agents.example")
        task = await caller.task("k", request_metadata={"skill": "keep"}, context=context)
        assert task.artifacts[0].text.startswith("https://agents.example/callbacks/")


@pytest.mark.parametrize(
    ("key", "expires", "words"),
    [
        ("", timedelta(1), "the key of an event"),
        ("k", timedelta(0), "expires is a positive timedelta"),
        ("k", 60, "expires is a positive timedelta"),
    ],
)
async def test_misuse_fails_the_task_and_the_log_says_what_would_be_right(
    key: str, expires: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("Wrong")

    @agent.skill(replies="task")
    async def order(turn: Turn) -> str:
        return await turn.callback(key, expires=expires)

    async with serving(parley.asgi(agent)) as url, parley.connect(url) as remote:
        assert (await remote.send("go")).state is TaskState.FAILED
    assert words in caplog.text
