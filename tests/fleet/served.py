"""The agent that fleets serve, one process per replica: ``served.py OPTIONS``, as JSON.

Its functions record their acts outside the log in the file that ``FLEET_ACTS`` names.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator

from parley import Agent, Execution, Retention, Turn, serve

agent = Agent(
    "Fleet",
    execution=Execution(
        cancel_grace=0.5, max_attempts=200, direct_reply_timeout=0.2, blocking_timeout=60.0
    ),
    retention=Retention(history=True),
)


def act(what: str) -> str:
    """Leave a trace outside the log, as a payment would."""
    with open(os.environ["FLEET_ACTS"], "a") as acts:
        acts.write(f"{what}\n")
    return what.rsplit(" ", 1)[-1]


@agent.skill
async def report(turn: Turn) -> AsyncIterator[str]:
    """Streams "COUNT PAUSE" numbered chunks, with so many milliseconds between them."""
    count, pause = map(int, turn.text.split())
    for n in range(count):
        yield f"{n} "
        await asyncio.sleep(pause / 1000)


@agent.skill
async def flood(turn: Turn) -> AsyncIterator[str]:
    """Streams "COUNT SIZE" chunks and characters as fast as it can."""
    count, size = map(int, turn.text.split())
    for n in range(count):
        yield f"{n} ".ljust(size, ".")


@agent.skill(replies="task")
async def steps(turn: Turn) -> str:
    """Does "COUNT" things once each."""
    done = []
    for n in range(int(turn.text)):
        done.append(await turn.step(f"step-{n}", step, turn.task_id, n))
        await asyncio.sleep(0.05)
    return " ".join(done)


async def step(task_id: str, n: int) -> str:
    return act(f"{task_id} {n}")


@agent.skill(replies="task")
async def quick(turn: Turn) -> str:
    """Does nothing, durably."""
    return "done"


@agent.skill(replies="task")
async def chat(turn: Turn) -> str:
    """Asks three questions."""
    return " ".join([(await turn.ask(f"Question {n}?")).text for n in range(3)])


@agent.skill(replies="task")
async def inbox(turn: Turn) -> str:
    """Works, and takes what it is told meanwhile, until it is told to end."""
    await turn.working("listening")
    taken = []
    async for message in turn.messages():
        if message.text == "end":
            break
        taken.append(message.text)
    return " ".join(taken)


@agent.skill(replies="task")
async def slow(turn: Turn) -> str:
    """Takes "COUNT" tenths of a second, and says at each where it is."""
    for n in range(int(turn.text)):
        await turn.working(f"at {n}")
        await asyncio.sleep(0.1)
    return "slow"


@agent.skill(replies="task")
async def fail(turn: Turn) -> None:
    """Fails, having begun."""
    await turn.working("trying")
    await asyncio.sleep(0.05)
    turn.fail("it does not go")


@agent.skill(replies="task")
async def crash(turn: Turn) -> None:
    """Raises what nobody may see."""
    await turn.working("trying")
    await asyncio.sleep(0.05)
    raise RuntimeError("hunter2")


@agent.skill(replies="task")
async def forever(turn: Turn) -> str:
    """Never ends by itself."""
    await turn.working("waiting")
    await asyncio.Event().wait()
    return "never"


if __name__ == "__main__":
    options = {"drain": 1.0, "allow_private_webhooks": ["127.0.0.1"], **json.loads(sys.argv[1])}
    if options.get("role") == "worker":
        options.pop("grpc_port", None)
    serve(agent, **options)
