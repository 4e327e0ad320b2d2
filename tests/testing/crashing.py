"""An agent to be killed in the middle of a turn: ``crashing.py PORT STORE GO``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from parley import Agent, Turn, serve


def crashing_agent(go: Path) -> Agent:
    """Return an agent that waits in the middle of its turn until a file exists."""
    agent = Agent("Crashing")

    async def act(turn_id: int) -> int:
        with go.with_suffix(".acts").open("a") as acts:
            acts.write(f"acted {turn_id}\n")
        return turn_id

    @agent.skill
    async def work(turn: Turn) -> str:
        await turn.working("begins")
        first = await turn.step("first", act, 1)
        async with turn.stream(name="report") as out:
            await out.write(f"attempt {turn.attempt}; ")
        await turn.working("in the middle")
        while not go.exists():
            await asyncio.sleep(0.01)
        second = await turn.step("second", act, 2)
        return f"{first} {second}"

    return agent


if __name__ == "__main__":
    serve(crashing_agent(Path(sys.argv[3])), port=int(sys.argv[1]), store=sys.argv[2])
