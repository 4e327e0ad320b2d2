"""Tests the smallest agent, without a socket: `pytest examples/test_hello.py`.

What else can be tested, such as time, crashes and other agents: docs/guides/test-your-agent.md.
"""

import pytest

from hello import agent
from parley.testing import client, message

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_it_greets() -> None:
    async with client(agent) as remote:
        assert await remote.send("I am Ada") == message("Hello! You said: I am Ada")


async def test_its_card_says_what_it_does() -> None:
    async with client(agent) as remote:
        [skill] = remote.card.skills
    assert skill.description == "Says hello, and what it was told."
