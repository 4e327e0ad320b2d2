"""The agents that are measured, served as anyone would serve them.

Arguments: the port, reply|task|stream|wait, and ``memory:`` or the path of a SQLite database.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import parley
from parley import Agent, Turn

sys.path.insert(0, str(Path(__file__).parents[1]))
from processes import pin


async def reply(turn: Turn) -> str:
    """Answers directly."""
    return turn.text


async def task(turn: Turn) -> None:
    """Makes a task: submitted, working, an artifact, completed."""
    await turn.working()
    await turn.artifact(turn.text, name="result")


async def stream(turn: Turn) -> AsyncIterator[str]:
    """Streams as many chunks as it is asked for."""
    for number in range(int(turn.text)):
        yield f"chunk {number} "


async def wait(turn: Turn) -> None:
    """Works for ever."""
    await turn.working()
    await asyncio.Event().wait()


def main(port: int, what: str, where: str) -> None:
    """Serve one of the agents."""
    agent = Agent(name="Benchmark", description="An agent to be measured", version="1.0.0")
    if what == "reply":
        agent.skill(tags=["work"])(reply)
    else:
        agent.skill(tags=["work"], replies="task")(
            {"task": task, "stream": stream, "wait": wait}[what]
        )
    store = where if where == "memory:" else f"sqlite:///{where}"
    parley.serve(agent, host="127.0.0.1", port=port, store=store)


if __name__ == "__main__":
    pin(0)
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
