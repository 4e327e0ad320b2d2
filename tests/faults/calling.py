"""An agent that calls others, killed while it waits: ``calling.py PORT STORE URL...``."""

from __future__ import annotations

import asyncio
import sys

from parley import Agent, Execution, Turn, serve

URLS = sys.argv[3:]

agent = Agent("Planner", execution=Execution(cancel_grace=0.5, max_attempts=100))


@agent.skill(replies="task")
async def plan(turn: Turn) -> str:
    """Calls all of the others at once, one of them twice, and passes their questions up."""
    answers = await asyncio.gather(
        *(turn.delegate(url, f"{turn.text} {n}", progress=True) for n, url in enumerate(URLS)),
        turn.delegate(URLS[0], f"{turn.text} again", key="again"),
    )
    return "; ".join(answer.text for answer in answers)


if __name__ == "__main__":
    serve(agent, port=int(sys.argv[1]), store=sys.argv[2], drain=2.0)
