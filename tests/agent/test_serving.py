"""An agent is served as it is when it is handed over."""

from __future__ import annotations

import pytest

import parley
from parley import Agent


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
