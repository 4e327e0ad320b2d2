"""What an author switches off is neither on the card nor done."""

from __future__ import annotations

import pytest

import parley
from parley import Agent, CardDetails, Turn
from parley.model.errors import PushNotificationNotSupportedError, UnsupportedOperationError
from parley.server.run import serving

pytestmark = pytest.mark.anyio


async def test_an_agent_without_streams_and_webhooks_answers_and_refuses_those() -> None:
    agent = Agent("Plain", card=CardDetails(streaming=False, push_notifications=False))

    @agent.skill
    async def echo(turn: Turn) -> str:
        """Says it again."""
        return turn.text

    async with serving(parley.asgi(agent)) as url, parley.connect(url) as remote:
        capabilities = remote.card.capabilities
        assert (capabilities.streaming, capabilities.push_notifications) == (False, False)
        assert (await remote.send("hello")).text == "hello"
        with pytest.raises(UnsupportedOperationError, match=r"capabilities\.streaming"):
            await anext(remote.subscribe("t-1"))
        with pytest.raises(PushNotificationNotSupportedError):
            await remote.send("hello", push="https://hooks.example.com")
