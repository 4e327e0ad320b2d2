"""The extension on a real server, found by its name."""

import asyncio

import pytest
from parley_template import Priority, Template

import parley
from parley import Agent, Turn
from parley.model.errors import InvalidParamsError
from parley.server.run import serving


def listener(*extensions: object) -> Agent:
    agent = Agent("Listener", extensions=extensions)

    @agent.skill
    async def listen(turn: Turn) -> str:
        """Says how urgent the message is."""
        found = Template.of(turn.message)
        return found.level if found else "no priority"

    return agent


def test_it_is_found_by_its_name() -> None:
    async def main() -> None:
        async with serving(parley.asgi(listener("template"))) as url:
            async with parley.connect(url, extensions=["template"]) as client:
                assert (await client.send("hello")).text == "normal"
            async with parley.connect(url, extensions=[Template(Priority("high"))]) as client:
                assert (await client.send("hello")).text == "high"
            async with parley.connect(url) as client:
                assert (await client.send("hello")).text == "no priority"

    asyncio.run(main())


def test_what_is_no_priority_is_refused() -> None:
    async def main() -> None:
        async with (
            serving(parley.asgi(listener(Template()))) as url,
            parley.connect(url, extensions=[Template.uri]) as client,
        ):
            with pytest.raises(InvalidParamsError):
                await client.send("hello", message_metadata={Template.uri: {"level": "huge"}})

    asyncio.run(main())
