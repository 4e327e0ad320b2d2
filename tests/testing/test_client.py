"""``parley.testing.client``: the ordinary client on the ordinary app, without a socket."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime, timedelta

import pytest

import parley
from parley import Agent, Caller, Retention, Task, Turn
from parley.model.errors import TaskNotFoundError
from parley.testing import client, completed, failed, working

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch, anyio_backend: str) -> None:
    """Refuse whatever would leave the process."""

    def refused(*args: object, **options: object) -> None:
        raise AssertionError("a socket was used")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket.socket, "bind", refused)


def echo() -> Agent:
    agent = Agent("Echo")

    @agent.skill
    async def say(turn: Turn) -> str:
        await turn.working("Listening")
        return turn.text

    return agent


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_both_bindings_over_http_answer(binding: str) -> None:
    async with client(echo(), binding=binding) as remote:
        assert remote.interface.protocol_binding == binding
        assert await remote.send("Hello") == completed("Hello")


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_both_versions_of_the_protocol_answer(version: str) -> None:
    async with client(echo(), version=version) as remote:
        assert remote.version == version
        assert await remote.send("Hello") == completed("Hello")


async def test_grpc_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="gRPC needs a socket: serve the agent"):
        client(echo(), binding="GRPC")


async def test_an_unsupported_store_is_refused_with_those_that_work() -> None:
    with pytest.raises(ValueError, match=r"memory: or in sqlite:///"):
        async with client(echo(), store="postgresql://localhost/tasks"):
            pass


async def test_something_else_than_an_agent_is_refused() -> None:
    with pytest.raises(TypeError, match=r"client tests an Agent.*parley.connect\(app\)"):
        client(parley.asgi(echo()))  # type: ignore[arg-type]


async def test_callers_own_their_tasks() -> None:
    async with client(echo(), caller="alice") as alice:
        task = await alice.send("Hello")
        assert isinstance(task, Task)
        bob = alice.as_caller("bob")
        with pytest.raises(TaskNotFoundError):
            await bob.get(task.id)
        assert await alice.get(task.id) == completed()
        assert [each.id for each in (await alice.list()).tasks] == [task.id]
        assert not (await bob.list()).tasks


async def test_turns_see_their_caller_with_its_claims() -> None:
    agent = Agent("Who", retention=Retention(claims=["team"]))

    @agent.skill
    async def who(turn: Turn) -> str:
        return f"{turn.caller.id} {turn.caller.authenticated} {turn.caller.claims}"

    async with client(agent, caller=Caller("ann", True, {"team": "blue"})) as remote:
        assert (await remote.send("?")).text == "ann True {'team': 'blue'}"
        assert (await remote.as_caller("bob").send("?")).text == "bob True {}"
    async with client(agent) as remote:
        assert (await remote.send("?")).text == " False {}"


async def test_the_function_that_identifies_callers_can_be_tested() -> None:
    agent = Agent("Who")

    @agent.skill
    async def who(turn: Turn) -> str:
        return turn.caller.id

    def identify(scope: dict[str, object]) -> Caller:
        headers = dict(scope["headers"])  # type: ignore[call-overload]
        return Caller(headers[b"authorization"].decode().removeprefix("Bearer "), True)

    async with client(agent, identify=identify, bearer="carol") as remote:
        assert (await remote.send("?")).text == "carol"
    with pytest.raises(ValueError, match="leave caller and scopes out"):
        client(agent, identify=identify, caller="carol")


async def test_a_stream_comes_as_it_is_sent() -> None:
    agent = Agent("Counter")
    go_on = asyncio.Event()

    @agent.skill
    async def count(turn: Turn) -> None:
        await turn.working("one")
        await go_on.wait()
        await turn.working("two")

    async with client(agent) as remote:
        stream = remote.stream("Count")
        seen = []
        async for event in stream:
            seen.append(event)
            if event == working("one"):
                go_on.set()  # only a stream that is not held back gets here
        assert working("two") in seen
        assert seen[-1] == completed()


async def test_tasks_that_the_test_leaves_hold_nothing_up() -> None:
    agent = Agent("Endless")

    @agent.skill
    async def wait(turn: Turn) -> None:
        await turn.working()
        await asyncio.Event().wait()

    async with client(agent) as remote:
        await remote.send("Go", return_immediately=True)
    assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and _ours(t)]


def _ours(task: asyncio.Task[object]) -> bool:
    return "parley" in str(task.get_coro())


async def test_the_loop_gets_its_methods_back() -> None:
    loop = asyncio.get_running_loop()
    before = set(vars(loop))
    async with client(echo()) as one, client(echo()) as two:
        await one.send("Hello")
        await two.send("Hello")
        assert set(vars(loop)) > before
    assert set(vars(loop)) == before


async def test_it_can_be_awaited_and_closed() -> None:
    remote = await client(echo())
    assert await remote.send("Hello") == completed("Hello")
    await remote.aclose()
    await remote.aclose()
    with pytest.raises(parley.ClientError, match="closed"):
        await remote.send("Hello")


async def test_a_test_begins_when_it_says() -> None:
    agent = Agent("Clock")

    @agent.skill
    async def work(turn: Turn) -> None:
        await turn.working()

    start = datetime(2030, 1, 1, tzinfo=UTC)
    async with client(agent, start=start) as remote:
        task = await remote.send("?")
        assert isinstance(task, Task)
        assert task.status.timestamp is not None
        assert start <= task.status.timestamp < start + timedelta(minutes=1)
        assert start <= remote.time.now < start + timedelta(minutes=1)
    with pytest.raises(ValueError, match="time zone"):
        client(agent, start=datetime(2030, 1, 1))


async def test_plain_functions_run_in_threads() -> None:
    agent = Agent("Blocking")

    @agent.skill
    def shout(turn: parley.BlockingTurn) -> str:
        turn.working("Breathing in")
        return turn.text.upper()

    async with client(agent) as remote:
        task = await remote.send("hello", return_immediately=True)
        assert isinstance(task, Task)
        await remote.settle()
        assert await remote.get(task.id) == completed("HELLO")


async def test_what_the_agent_raises_reaches_the_caller_as_in_production() -> None:
    agent = Agent("Broken")

    @agent.skill
    async def work(turn: Turn) -> None:
        await turn.working()
        raise ZeroDivisionError

    async with client(agent) as remote:
        assert await remote.send("fail") == failed()
