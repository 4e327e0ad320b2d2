"""The agents that are measured, served as anyone would serve them.

Arguments: the port, reply|task|stream|talk|wait|ask|ticks, ``memory:``, the path of a SQLite
database or the URL of a store, and what a fleet adds to that: ``bus=URL``, ``lease=SECONDS``,
``pin=no``; for SQLite ``synchronous=NORMAL``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import parley
from parley import Agent, Settings, Turn

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


async def talk(turn: Turn) -> None:
    """Makes a task with twenty messages."""
    for number in range(1, 20):
        await turn.working(f"message {number} of a conversation")


async def wait(turn: Turn) -> None:
    """Works for ever."""
    await turn.working()
    await asyncio.Event().wait()


async def ask(turn: Turn) -> str:
    """Asks a question, and so parks its task."""
    return (await turn.ask("How many?")).text


async def ticks(turn: Turn) -> None:
    """Says what the clock says, "COUNT MILLISECONDS" times and apart."""
    count, apart = map(int, turn.text.split())
    for _ in range(count):
        await asyncio.sleep(apart / 1000)
        await turn.working(f"at {time.monotonic_ns()} ")


SKILLS = {"task": task, "stream": stream, "talk": talk, "wait": wait, "ask": ask, "ticks": ticks}


def main(port: int, what: str, where: str, **more: str) -> None:
    """Serve one of the agents."""
    agent = Agent(name="Benchmark", description="An agent to be measured", version="1.0.0")
    if what == "reply":
        agent.skill(tags=["work"])(reply)
    else:
        agent.skill(tags=["work"], replies="task")(SKILLS[what])
    options: dict[str, Any] = {"store": where}
    if "synchronous" in more:
        from parley.store.sqlite.store import SqliteTaskStore

        options["store"] = SqliteTaskStore(where, synchronous=more["synchronous"])
    elif where != "memory:" and "://" not in where:
        options["store"] = f"sqlite:///{where}"
    if "bus" in more:
        options["bus"] = more["bus"]
    if "lease" in more:
        options["lease"] = float(more["lease"])
    # One caller has all the streams here.
    settings = Settings(max_streams=50_000)
    parley.serve(agent, host="127.0.0.1", port=port, settings=settings, **options)


if __name__ == "__main__":
    further = dict(part.split("=", 1) for part in sys.argv[4:])
    if further.pop("pin", "") != "no":
        pin(0)
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], **further)
