"""An agent in its own process: ``replica.py PORT STORE ACTS``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from parley import Agent, Execution, Turn, serve

agent = Agent("Replica", execution=Execution(cancel_grace=0.2, direct_reply_timeout=0.2))


def act(what: str) -> str:
    """Leave a side effect outside the log, as a payment would."""
    with open(sys.argv[3], "a") as acts:
        acts.write(f"{what}\n")
    return what


@agent.skill(replies="task")
async def pay(turn: Turn, what: str, amount: int = 1) -> AsyncIterator[str]:
    """Pays once, and then takes its time in its first attempt."""
    yield f"{await turn.step('pay', act, what)} "
    for n in range(20):
        yield f"{n} "
        await asyncio.sleep(0.01)
    if turn.attempt == 1 and what.startswith("slow"):
        await asyncio.sleep(3600)


if __name__ == "__main__":
    serve(agent, port=int(sys.argv[1]), store=sys.argv[2], drain=1.0, lease=2.0)
