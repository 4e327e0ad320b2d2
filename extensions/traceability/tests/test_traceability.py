"""A tree of agents, each on a server of its own."""

import asyncio
import hashlib
from contextlib import AsyncExitStack
from typing import Any

import pytest
from parley_traceability import URI, Call, Trace, Traceability, trace_of

import parley
from parley import Agent, Turn
from parley.client.errors import ClientError, RemoteTaskFailed
from parley.model.parts import Message, Part, Role
from parley.server.run import serving


def leaf(name: str, *extensions: Any) -> Agent:
    agent = Agent(name, extensions=extensions)

    @agent.skill
    async def answer(turn: Turn) -> str:
        """Answers."""
        return f"{name} of {turn.text}"

    return agent


def planner(hotel: str, others: list[str], traceability: Traceability) -> Agent:
    agent = Agent("Planner", extensions=[traceability])

    @agent.skill
    async def plan(turn: Turn) -> str:
        """Asks the others."""
        said = [await traceability.delegate(turn, url, turn.text) for url in [hotel, *others]]
        return " + ".join(each.text for each in said)

    return agent


def outline(trace: Trace | None) -> Any:
    if trace is None:
        return None
    return {trace.agent: [(call.agent, call.state, outline(call.trace)) for call in trace.calls]}


def test_an_answer_says_who_had_a_part_in_it() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:

            async def serve(agent: Agent) -> str:
                app = parley.asgi(agent, allow_private_agents=True)
                return await stack.enter_async_context(serving(app))

            spa = await serve(leaf("Spa", Traceability("Spa")))
            plain = await serve(leaf("Plain"))
            hotel = await serve(planner(spa, [], Traceability("Hotel")))
            top = await serve(planner(hotel, [plain], Traceability("Trip")))
            async with parley.connect(top, extensions=[URI]) as client:
                task = await client.send("two nights")
                assert task.id
                assert task.text == "Spa of two nights + Plain of two nights"
                trace = trace_of(task)
            async with parley.connect(top) as client:
                assert trace_of(await client.send("two nights")) is None
        spa_call = ("Spa", "message", {"Spa": []})
        hotel_call = ("Planner", "TASK_STATE_COMPLETED", {"Hotel": [spa_call]})
        assert outline(trace) == {"Trip": [hotel_call, ("Plain", "message", None)]}
        assert trace is not None
        sent = {trace.calls[0].sent, trace.calls[1].sent}
        assert sent == {hashlib.sha256(b'[{"text":"two nights"}]').hexdigest()}  # both got the same
        assert trace.calls[0].task_id

    asyncio.run(main())


def test_a_trace_is_bounded_and_counts_what_it_leaves_out() -> None:
    def call(name: str, trace: Trace | None = None) -> Call:
        at = "2026-01-31T12:00:00Z"
        return Call(agent=name, sent="", at=at, seconds=0, state="message", trace=trace)

    below = Trace(agent="B", calls=tuple(call(f"c{n}") for n in range(10)))
    traceability = Traceability("A", max_calls=4)
    traceability._of_task("t").calls.update({"1": call("B", below), "2": call("D")})
    event = Message(message_id="m", task_id="t", role=Role.AGENT, parts=(Part(text="hi"),))
    trace = trace_of(traceability.send(event))
    assert trace is not None
    assert [each.agent for each in trace.calls] == ["B", "D"]
    inner = trace.calls[0].trace
    assert inner is not None
    assert ([each.agent for each in inner.calls], inner.omitted) == (["c0", "c1"], 8)
    bad = Message(message_id="m", role=Role.AGENT, parts=(Part(text="x"),), metadata={URI: 5})
    assert trace_of(bad) is None


def test_a_function_that_runs_again_calls_nobody_again() -> None:
    traceability, booked = Traceability("Planner"), list[str]()
    hotel = Agent("Hotel")

    @hotel.skill
    async def book(turn: Turn) -> str:
        """Books."""
        booked.append(turn.text)
        if turn.text == "none":
            turn.fail("no room")
        return "booked"

    agent = Agent("Planner", extensions=[traceability], uses=[hotel])

    @agent.skill(replies="task")
    async def plan(turn: Turn) -> str:
        """Books, and asks."""
        first = await traceability.delegate(turn, hotel, "one")
        answer = await turn.ask("And another?")
        second = await traceability.delegate(turn, hotel, "two")
        with pytest.raises(RemoteTaskFailed):
            await traceability.delegate(turn, hotel, "none")
        return f"{first.text} {answer.text} {second.text}"

    async def main() -> None:
        async with parley.connect(agent, extensions=[URI]) as client:
            task = await client.send("go")
            task = await client.send("yes", task=task)
        assert booked == ["one", "two", "none"]
        trace = trace_of(task)
        assert trace is not None
        assert [each.agent for each in trace.calls] == ["Hotel"] * 3
        assert trace.calls[2].state == "TASK_STATE_FAILED"

    asyncio.run(main())


def test_an_agent_that_cannot_be_reached_is_in_the_trace_without_its_secrets() -> None:
    traceability = Traceability("Planner")
    agent = Agent("Planner", extensions=[traceability])

    @agent.skill(replies="task")
    async def plan(turn: Turn) -> str:
        """Calls an agent that is not there."""
        with pytest.raises(ClientError):
            await traceability.delegate(turn, "http://127.0.0.1:9/hotel?key=secret", "two")
        return "nobody"

    async def main() -> None:
        async with parley.connect(agent, extensions=[URI]) as client:
            trace = trace_of(await client.send("go"))
        assert trace is not None
        [call] = trace.calls
        assert (call.agent, call.state) == ("http://127.0.0.1:9/hotel", "error")

    asyncio.run(main())
