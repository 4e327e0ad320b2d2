"""The agent for official clients: the first word of a message selects its action."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

from parley import Agent, AgentProvider, Artifact, CardDetails, Execution, Part, Turn

agent = Agent(
    "Counterpart",
    description="What official clients talk to",
    version="2.1",
    card=CardDetails(provider=AgentProvider(organization="Parley", url="https://parley.example")),
    input_modes=["text/plain", "application/json", "image/png", "application/octet-stream"],
    execution=Execution(cancel_grace=0.5),
)
gates: dict[str, asyncio.Event] = {}


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


@agent.skill(tags=["greeting"], examples=["hello"])
async def hello(turn: Turn) -> str:
    """Says hello."""
    return "hello yourself"


@agent.skill
async def report(turn: Turn) -> AsyncIterator[str]:
    """Writes a report; from the third chunk on when it may."""
    await turn.working("writing")
    for n in range(5):
        if n == 2 and " " in turn.text:
            await gate(turn.text).wait()
        yield f"chunk {n}. "


@agent.skill
async def two(turn: Turn) -> None:
    """Makes two artifacts, one of them in pieces between the other's."""
    async with turn.stream("log", media_type="text/plain") as out:
        await out.write("begun. ")
        await turn.artifact({"answer": 42, "nothing": None}, name="answer", description="the one")
        await out.write("done.")


@agent.skill
async def book(turn: Turn) -> str:
    """Books a flight."""
    origin = (await turn.ask("From where?")).text
    target = (await turn.ask("To where?")).text
    return f"{origin} to {target}"


@agent.skill
async def pay(turn: Turn) -> str:
    """Pays, once that is authorised."""
    await turn.require_auth("Please log in")
    return "paid"


@agent.skill(replies="task")
async def wait(turn: Turn) -> str:
    """Waits for its gate."""
    await turn.working("waiting")
    await gate(turn.text).wait()
    return "waited"


@agent.skill
async def echo(turn: Turn) -> Artifact:
    """Gives back what it was given."""
    return Artifact(artifact_id="echo", parts=turn.parts, metadata={"big": 2**60, "none": None})


@agent.skill(invalid_input="ask")
async def convert(amount: float, currency: Literal["EUR", "USD"]) -> dict[str, Any]:
    """Converts money, and asks for what it needs to know."""
    return {"amount": amount, "currency": currency}


@agent.skill
async def double(n: int) -> int:
    """Doubles a number."""
    return 2 * n


@agent.skill
async def recall(turn: Turn) -> str:
    """Names the artifacts of the tasks that are referred to."""
    return ", ".join([a.name for task in await turn.references() for a in task.artifacts])


@agent.skill
async def fail(turn: Turn) -> Part:
    """Fails."""
    turn.fail("it did not work")


@agent.skill
async def refuse(turn: Turn) -> Part:
    """Refuses."""
    turn.reject("not this")


@agent.skill(replies="task")
async def crash(turn: Turn) -> str:
    """Has a bug."""
    raise RuntimeError("secret internals")
