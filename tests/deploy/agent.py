"""The agent behind the proxy: it reports the answering process, and streams in two halves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from parley import Agent, Turn

agent = Agent(name="Behind a proxy", description="Tells processes apart", version="1.0.0")


@agent.skill(replies="message")
async def who(turn: Turn) -> str:
    """Says which process it runs in."""
    return str(os.getpid())


@agent.skill(replies="task")
async def halves(turn: Turn) -> AsyncIterator[str]:
    """Streams its process, then waits for a file of the name that it is sent, then the rest."""
    yield str(os.getpid())
    while not Path(turn.text).exists():
        await asyncio.sleep(0.01)
    yield "the rest"


@agent.skill(replies="task")
async def count(turn: Turn) -> AsyncIterator[str]:
    """Streams numbers, ten a second, up to the one that it is sent."""
    for number in range(int(turn.text.split()[0])):
        yield f"{number} "
        await asyncio.sleep(0.1)
