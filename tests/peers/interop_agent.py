"""The agent for the peers of the interoperability matrix.

The agents on the peers' servers do the same: the first word of a message selects the action.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from parley import Agent, Execution, RoutedMessage, Turn
from parley.model.errors import InvalidParamsError

CHUNKS = 5

agent = Agent(
    "Counterpart",
    description="What other people's clients talk to",
    version="2.1",
    input_modes=["text/plain", "image/png"],
    execution=Execution(cancel_grace=0.5),
)


@agent.router
async def route(asked: RoutedMessage) -> str:
    """The first word; a message that says ``refuse`` is refused before there is a task."""
    word = asked.text.partition(" ")[0]
    if word == "refuse":
        raise InvalidParamsError("this is never accepted")
    return word if word in agent.skills else "hello"


@agent.skill(tags=["greeting"], examples=["hello"])
async def hello(turn: Turn) -> str:
    """Says hello."""
    return "hello yourself"


@agent.skill
async def report(turn: Turn) -> AsyncIterator[str]:
    """Writes a report, chunk by chunk."""
    await turn.working("writing")
    for n in range(CHUNKS):
        yield f"chunk {n}. "
        await asyncio.sleep(0.02)


@agent.skill
async def book(turn: Turn) -> str:
    """Books a flight."""
    target = (await turn.ask("where to?")).text
    return f"booked: {target}"


@agent.skill
async def file(turn: Turn) -> str:
    """Says what files it was given."""
    files = [part for part in turn.parts if part.raw is not None]
    return ", ".join(f"{len(part.raw or b'')} bytes of {part.media_type}" for part in files)


@agent.skill(replies="task")
async def slow(turn: Turn) -> str:
    """Works until it is canceled."""
    await turn.working("working")
    await asyncio.Event().wait()
    return "never"
