"""Handoffs of conversations to another agent: their owner, their end, and the data passed on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Retention, TaskState, Turn
from parley.compose import Handoffs, handoff
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


class Billing:
    """An agent that receives handoffs, and records them."""

    def __init__(self, name: str = "Billing", **options: Any) -> None:
        self.heard: list[str] = []
        self.handoffs: list[Any] = []
        self.contexts: set[str] = set()
        self.referred: list[tuple[str, ...]] = []
        self.agent = Agent(name, **options)

        @self.agent.skill(replies="task")
        async def bill(turn: Turn) -> object:
            """Answers about money."""
            if turn.number == 1:
                self.heard.append(turn.text)
                self.handoffs.append(turn.handoff)
                self.contexts.add(turn.context_id)
                self.referred.append(turn.message.reference_task_ids)
            match turn.text.split():
                case ["ask", *_]:
                    return f"told {(await turn.ask('Which invoice?')).text}"
                case ["login", *_]:
                    return f"got {(await turn.require_auth('Log in')).text}"
                case ["done", *_]:
                    return handoff(back=True, answer="Refunded.", note="paid back")
                case ["weather", *_]:
                    return handoff(back=True, note="not about money")
                case ["fail", *_]:
                    turn.fail("no such invoice")
                case ["wait", *_]:
                    await turn.working("waiting")
                    await asyncio.Event().wait()
            return f"{name}: {turn.text}"


class Reception:
    """An agent that hands over conversations about money."""

    def __init__(self, *to: Any, **options: Any) -> None:
        self.ran: list[str] = []
        self.handoffs: list[Any] = []
        handoffs = options.pop("handoffs", list(to))
        self.agent = Agent(
            "Reception", handoffs=handoffs, retention=Retention(history=True), **options
        )

        @self.agent.skill
        async def receive(turn: Turn) -> object:
            """Answers, or hands over."""
            self.ran.append(turn.text)
            self.handoffs.append(turn.handoff)
            if "wonder" in turn.text:
                return f"Reception heard {(await turn.ask('What?')).text}"
            if "money" in turn.text and not (turn.handoff and turn.handoff.is_back):
                return handoff(to[0], note="wants a refund")
            return f"Reception: {turn.text}"


@pytest.fixture(params=["local", "remote"])
async def desk(request: Any, serve: Any) -> tuple[Reception, Billing]:
    billing = Billing()
    to = billing.agent if request.param == "local" else await serve(billing.agent)
    return Reception(to), billing


async def test_two_messages_that_hand_over_at_once_hand_over_once(
    desk: tuple[Reception, Billing], talk_to: Any
) -> None:
    reception, billing = desk
    remote = await talk_to(reception.agent)
    talk = (await remote.send("hello")).context_id
    answers = await asyncio.gather(*[remote.send(f"money {n}", context_id=talk) for n in range(5)])
    assert sorted(each.text for each in answers) == [f"Billing: money {n}" for n in range(5)]
    assert (await remote.send("more", context_id=talk)).text == "Billing: more"
    assert (await remote.send("done", context_id=talk)).text == "Refunded."
    assert (await remote.send("hello", context_id=talk)).text == "Reception: hello"
    assert sorted(billing.heard[:5]) == [f"money {n}" for n in range(5)]


async def test_any_replica_goes_on_with_the_other_agent(fleet: Any) -> None:
    def replica() -> tuple[Reception, Billing]:
        billing = Billing()
        return Reception(billing.agent), billing

    (first, _), (second, _) = replica(), replica()
    one, other = await fleet.add(first.agent), await fleet.add(second.agent)
    task = await one.task("money")
    assert task.text == "Billing: money"
    again = await other.task("more", context_id=task.context_id)
    assert again.text == "Billing: more"
    assert second.ran == []


async def test_a_cancellation_reaches_the_other_agent(serve: Any, talk_to: Any) -> None:
    billing = Billing()
    url = await serve(billing.agent)
    remote = await talk_to(Reception(url).agent)
    first = await remote.send("money")
    task = await remote.send("wait", context_id=first.context_id, return_immediately=True)
    await until(lambda: billing.heard == ["money", "wait"])
    assert (await remote.cancel(task.id)).state is TaskState.CANCELED
    async with parley.connect(url) as direct:
        (waiting,) = [t async for t in direct.tasks() if t.history[0].text == "wait"]
    assert waiting.state is TaskState.CANCELED


async def test_a_message_changes_hands_a_limited_number_of_times(serve: Any, talk_to: Any) -> None:
    billing = Billing()
    loops = Agent("Loops", handoffs=Handoffs(to=(await serve(billing.agent),), most=3))

    @loops.skill
    async def loop(turn: Turn) -> object:
        """Hands over whatever comes back."""
        await turn.step("counted", str)
        return handoff(loops.handoffs.to[0])  # type: ignore[union-attr]

    task = await (await talk_to(loops)).send("weather")
    assert task.state is TaskState.FAILED
    assert task.text == "This message was handed over 3 times without an answer."
    assert billing.heard == ["weather"] * 3


async def test_nobody_gets_the_conversation_of_another_caller(serve: Any, talk_to: Any) -> None:
    billing = Billing()
    reception = Reception(await serve(billing.agent))

    def caller(request: Any) -> Caller:
        return Caller(id=dict(request["headers"])[b"x-name"].decode(), authenticated=True)

    url = await serve(reception.agent, caller=caller)
    async with (
        parley.connect(url, headers={"x-name": "ann"}) as ann,
        parley.connect(url, headers={"x-name": "bob"}) as bob,
    ):
        first = await ann.send("money")
        assert (await bob.send("hi", context_id=first.context_id)).text == "Reception: hi"
        assert (await ann.send("hi", context_id=first.context_id)).text == "Billing: hi"
