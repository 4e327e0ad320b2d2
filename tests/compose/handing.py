"""An agent that hands over and is then killed: ``handing.py PORT STORE URL``."""

from __future__ import annotations

import sys

from parley import Agent, Execution, Turn, serve
from parley.compose import handoff

BILLING = sys.argv[3]

agent = Agent(
    "Reception", handoffs=[BILLING], execution=Execution(cancel_grace=0.5, max_attempts=100)
)


@agent.skill(replies="task")
async def receive(turn: Turn) -> object:
    """Hands over at once."""
    if turn.handoff and turn.handoff.is_back:
        return f"Reception: {turn.text}"
    return handoff(BILLING, note="a note")


if __name__ == "__main__":
    serve(agent, port=int(sys.argv[1]), store=sys.argv[2], drain=2.0)
