"""An agent that waits in every way, and is killed meanwhile: ``waiting.py OPTIONS``, as JSON.

Its functions record their acts outside the log in the file that ``FLEET_ACTS`` names.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from parley import Agent, Execution, Turn, serve

OPTIONS = json.loads(sys.argv[1])
PEER = OPTIONS.pop("peer")

agent = Agent(
    "Waiting", execution=Execution(cancel_grace=0.5, max_attempts=200, direct_reply_timeout=0.1)
)


def act(what: str) -> None:
    """Leave a trace outside the log, as a payment would."""
    with open(os.environ["FLEET_ACTS"], "a") as acts:
        acts.write(f"{what}\n")


async def nap(turn: Turn) -> str:
    await turn.sleep(1.2)
    return "slept"


async def payment(turn: Turn) -> Any:
    """Wait for an event that is completed by its callback."""
    key = f"paid:{turn.text}"
    address = await turn.callback(key, expires=timedelta(hours=1))
    await turn.step("pay", act, f"pay {turn.text} {address}")
    return await turn.wait_event(key)


async def approval(turn: Turn) -> Any:
    """Wait for an event that another process completes in the store."""
    await turn.step("approve", act, f"approve {turn.text}")
    return await turn.wait_event(f"approved:{turn.text}", timeout=timedelta(hours=1))


async def patience(turn: Turn) -> str:
    """Wait for an event that never comes."""
    try:
        return str(await turn.wait_event(f"never:{turn.text}", timeout=1.3))
    except TimeoutError:
        return "in vain"


async def question(turn: Turn) -> str:
    return (await turn.ask("Go on?")).text


async def work(turn: Turn) -> str:
    """Send a message to another agent, which asks no question."""
    answer = await turn.delegate(PEER, turn.text, key="work")
    assert answer.id
    return answer.text


WAYS: dict[str, Callable[[Turn], Awaitable[Any]]] = {
    each.__name__: each for each in (nap, payment, approval, patience, question, work)
}


@agent.skill(replies="task")
async def one_by_one(turn: Turn) -> str:
    """Waits in all ways, in an order of its own."""
    names = sorted(WAYS)
    random.Random(turn.text).shuffle(names)
    found = {name: await WAYS[name](turn) for name in names}
    return json.dumps(found, sort_keys=True)


@agent.skill(replies="task")
async def at_once(turn: Turn) -> str:
    """Waits in all ways at the same time, and then asks."""
    names = sorted(WAYS.keys() - {"question"})
    values = await asyncio.gather(*(WAYS[name](turn) for name in names))
    found = dict(zip(names, values, strict=True))
    found["question"] = await question(turn)
    return json.dumps(found, sort_keys=True)


if __name__ == "__main__":
    serve(agent, **{"drain": 1.0, **OPTIONS})
