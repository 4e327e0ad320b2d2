"""An agent for MCP hosts: typed, streaming, asking, slow."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from parley import Agent, Caller, Turn
from parley.extensions.usage import RUN_PROGRESS
from parley.security import Bearer, anonymous


def judge(token: str) -> Caller | None:
    """Return the caller of a token."""
    return Caller(id="ann") if token == "token-of-ann" else None


agent = Agent("Workshop", description="Repairs cars", security=Bearer(judge) | anonymous)
ended: list[str] = []
"""How ``slow`` ended."""


class Quote(msgspec.Struct):
    """What a repair costs."""

    price: float
    currency: str


class Buyer(msgspec.Struct):
    """Who buys a car."""

    name: str
    size: Literal["small", "large"]


@agent.skill(examples=["A Golf with two doors"])
async def quote(car: str, doors: int = 4) -> Quote:
    """Says what a repair costs."""
    return Quote(100.0 * doors, "EUR")


@agent.skill
async def repair(turn: Turn) -> None:
    """Repairs a car."""
    await turn.working("looking")
    drilling = {"kind": "toolProgress", "name": "drill", "text": "1 of 2"}
    await turn.working(metadata={RUN_PROGRESS: drilling})
    async with turn.stream("report") as report:
        for word in ("as ", "good ", "as new"):
            await report.write(word)


@agent.skill
async def sell(turn: Turn) -> str:
    """Sells a car, and asks to whom."""
    buyer = await turn.ask("Who buys?", answer=Buyer)
    why = await turn.ask("Why?")
    return f"sold to {buyer.name} ({buyer.size}), {why.text}"


@agent.skill
async def slow(turn: Turn) -> str:
    """Takes as long as it is told, in seconds."""
    await turn.working("at work")
    try:
        await asyncio.sleep(float(turn.text))
    except asyncio.CancelledError:
        ended.append("canceled")
        raise
    return "done at last"


@agent.skill
async def caller(turn: Turn) -> str:
    """Says who calls."""
    return turn.caller.id or "nobody"
