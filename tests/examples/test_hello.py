"""The smallest example."""

from __future__ import annotations

import pytest

from parley import Message

pytestmark = pytest.mark.anyio


async def test_it_greets_with_a_direct_message(example, serve) -> None:
    async with serve(example("hello").agent) as agent:
        reply = await agent.send("I am Ada")
    assert isinstance(reply, Message)
    assert reply.text == "Hello! You said: I am Ada"


async def test_its_card_says_what_it_does(example, serve) -> None:
    async with serve(example("hello").agent) as agent:
        [skill] = agent.card.skills
    assert (skill.id, skill.tags) == ("hello", ("greeting",))
    assert skill.description == "Says hello, and what it was told."
