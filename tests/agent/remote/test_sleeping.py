"""A turn that sleeps in one branch and calls another agent in the other."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

import parley
from parley import Agent, TaskState, Turn, testing
from parley.engine.turn.waits import SETTLE_ROUNDS
from parley.server.run import serving
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

PEER = "https://peer.example"


async def test_what_the_agent_asks_does_not_wait_until_the_sleep_is_over() -> None:
    peer, planner = Agent("Peer"), Agent("Planner")

    @peer.skill(replies="task")
    async def work(turn: Turn) -> str:
        await asyncio.sleep(60)
        return (await turn.ask("Which day?")).text

    @planner.skill(replies="task")
    async def plan(turn: Turn) -> str:
        _, answer = await asyncio.gather(turn.sleep(timedelta(hours=1)), turn.delegate(PEER, "go"))
        return answer.text

    async with testing.client(planner, remotes={PEER: peer}) as remote:
        task = await remote.send("go", return_immediately=True)
        await remote.advance(60)
        assert await remote.get(task.id) == testing.input_required("Which day?")
        assert (await remote.cancel(task.id)).state is TaskState.CANCELED


def slowly(agent: Agent) -> ASGIApp:
    """An app that lets many rounds of the event loop pass before each request."""
    app = parley.asgi(agent)

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for _ in range(10 * SETTLE_ROUNDS):
                await asyncio.sleep(0)
        await app(scope, receive, send)

    return slow


async def test_a_sleep_holds_up_neither_the_message_nor_the_answer_to_a_question() -> None:
    """Not even while they connect, or ask whether the caller has authorised it out of band."""
    peer, planner = Agent("Peer"), Agent("Planner")
    answers: list[str] = []

    @peer.skill(replies="task")
    async def work(turn: Turn) -> str:
        answers.append((await turn.require_auth("Sign in.")).text)
        return "done"

    async with serving(slowly(peer)) as url:

        @planner.skill(replies="task")
        async def plan(turn: Turn) -> str:
            sleep = turn.sleep(timedelta(hours=1))
            _, answer = await asyncio.gather(sleep, turn.delegate(url, "go"))
            return answer.text

        async with parley.connect(planner) as remote:
            task = await remote.send("go", timeout=10)
            assert task == testing.auth_required("Sign in.")
            await remote.send("code 1234", task=task, return_immediately=True)
            await until(lambda: answers == ["code 1234"])


async def test_a_stream_begins_before_the_turn_falls_asleep() -> None:
    """Else the message would be sent again by the run after the sleep."""
    peer, planner = Agent("Peer"), Agent("Planner")
    seen: list[object] = []

    @peer.skill(replies="task")
    async def work(turn: Turn) -> str:
        return (await turn.ask("Which day?")).text

    async with serving(slowly(peer)) as url:

        @planner.skill(replies="task")
        async def plan(turn: Turn) -> str:
            async def follow() -> None:
                async with turn.connect(url) as remote:
                    seen.append(await anext(aiter(remote.stream("go"))))

            await asyncio.gather(turn.sleep(timedelta(hours=1)), follow())
            return "done"

        async with parley.connect(planner) as remote:
            await remote.send("go", return_immediately=True)
            await until(lambda: bool(seen), 10)
