"""Common mistakes of beginners, and the state of an agent at the time when it is served."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from datetime import timedelta
from typing import Any

import pytest

import parley
from parley import Agent, Turn, testing

pytestmark = pytest.mark.anyio


def echo() -> Agent:
    agent = Agent("Echo")

    @agent.skill
    async def say(turn: Turn) -> str:
        return turn.text

    return agent


async def test_a_connection_that_is_not_open_says_how_to_open_it() -> None:
    agent = Agent("Caller")

    @agent.skill
    async def ask(turn: Turn) -> Any:
        return turn.connect("https://other.example").send("x")  # type: ignore[attr-defined]

    for unopened in (parley.connect(echo()), testing.client(echo())):
        with pytest.raises(AttributeError, match=r"'send' before it is open: .*`async with"):
            unopened.send("x")  # type: ignore[attr-defined]
    async with testing.client(agent) as remote:
        assert await remote.send("?") == testing.failed()


async def test_a_call_in_a_turn_that_is_not_awaited_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent("Asker")

    @agent.skill
    async def ask(turn: Turn) -> Any:
        answer: Any = turn.wait_event("x")
        try:
            return answer if turn.text == "whole" else answer.text
        finally:
            asyncio.get_running_loop().call_soon(answer.close)

    caplog.set_level(logging.ERROR)
    async with parley.connect(agent) as remote:
        await remote.send("its text")
        assert "the call was not awaited: write (await ...).text" in caplog.text
        await remote.send("whole")
        assert "it was not awaited" in caplog.text


@pytest.mark.parametrize("name", ["run", "serve", "asgi"])
def test_an_agent_is_served_by_a_function(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name!r}: parley.serve\(agent\) serves"):
        getattr(echo(), name)
    with pytest.raises(AttributeError, match=r"parley.connect\(agent\)"):
        echo().send("x")  # type: ignore[attr-defined]
    assert not hasattr(echo(), "anything")


async def test_a_step_takes_the_function_itself(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent("Stepper")

    async def later() -> str:
        return "x"

    @agent.skill
    async def work(turn: Turn) -> str:
        given: Any = later() if turn.text == "later" else "value"
        return str(await turn.step("charge", given))

    async with parley.connect(agent) as remote:
        for text, kind in (("later", "coroutine"), ("now", "str")):
            caplog.clear()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await remote.send(text)
            assert f"turn.step('charge', function(...)), which gives it a {kind}" in caplog.text


@pytest.mark.parametrize(
    "given",
    [
        {"message": "cut: \ud83d"},
        {"message": {"a": ["\ud83d"]}},
        {"message": {"\ud83d": 1}},
        {"message": parley.Part(raw=b"", filename="\ud83d")},
        {"message": "x", "metadata": {"a": "\ud83d"}},
        {"message": "x", "message_metadata": {"a": "\ud83d"}},
        {"message": "x", "context_id": "\ud83d"},
    ],
    ids=ascii,
)
async def test_half_a_character_is_refused_before_it_is_sent(given: dict[str, Any]) -> None:
    async with parley.connect(echo()) as remote:
        with pytest.raises(ValueError, match=r"half of a character \(U\+D83D, a lone surrogate\)"):
            await remote.send(**given)
        assert (await remote.send("whole: 😀")).text == "whole: 😀"


def test_options_outside_of_their_group_are_named_with_it() -> None:
    with pytest.raises(TypeError, match=r"takes no policy: write rights=Rights\(policy=\.\.\.\)"):
        Agent("Bank", policy=lambda access: True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"takes no on_crash: write execution=Execution\("):
        Agent("Bank", on_crash="fail")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"retention is Retention\(\.\.\.\), not datetime"):
        Agent("Bank", retention=timedelta(days=1))  # type: ignore[arg-type]
    parameters = inspect.signature(Agent.__init__).parameters.values()
    assert len([each for each in parameters if each.kind is each.KEYWORD_ONLY]) <= 15


# -- an agent is served in the state that it has when serving begins -------------------------------


def test_an_agent_that_is_served_takes_no_more_skills() -> None:
    agent = Agent("Early")

    @agent.skill
    async def first(text: str) -> str:
        """Comes in time."""
        return text

    parley.asgi(agent)

    async def late(text: str) -> str:
        """Comes too late."""
        return text

    for register in (agent.skill, agent.router):
        with pytest.raises(RuntimeError, match=r"'Early' is served already, .* declare its"):
            register(late)
