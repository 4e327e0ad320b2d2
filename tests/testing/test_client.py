"""``parley.testing.client``: the ordinary client on the ordinary app, without a socket."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta

import pytest

import parley
from parley import Agent, Caller, Turn
from parley.testing import client, completed

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch, anyio_backend: str) -> None:
    """Reject every network connection."""

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


async def test_an_unsupported_store_is_refused_with_those_that_work() -> None:
    with pytest.raises(ValueError, match=r"memory: or in sqlite:///"):
        async with client(echo(), store="postgresql://localhost/tasks"):
            pass


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
        assert task.id
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
        assert task.id
        await remote.settle()
        assert await remote.get(task.id) == completed("HELLO")
