"""An agent that asks its policy, killed after the decision: ``authorizing.py PORT STORE``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from parley import Agent, Caller, Execution, NotAuthorized, Rights, Turn, serve
from parley.security import Access

TRACE = f"{sys.argv[2].removeprefix('sqlite:///')}.asked"


def policy(access: Access) -> bool:
    """Allow everything except orders above 100, and record each action in a file."""
    if access.action:
        with open(TRACE, "a") as trace:
            trace.write(f"{access.action} {access.resource} {access.caller.id}\n")
    return not (access.action == "order" and int(access.resource) > 100)


async def caller(scope: Any) -> Caller:
    """Return the same user for every request, with a client and scopes."""
    return Caller(
        "ada",
        authenticated=True,
        client="phone",
        actors=("assistant",),
        scopes=frozenset({"order", "read"}),
    )


agent = Agent(
    "Shop", execution=Execution(cancel_grace=0.5, max_attempts=100), rights=Rights(policy=policy)
)


@agent.skill(replies="task")
async def order(turn: Turn) -> str:
    """Asks about two orders, and waits to be killed in its first attempt."""
    await turn.authorize("order", "100")
    try:
        await turn.authorize("order", "101")
    except NotAuthorized:
        refused = True
    await turn.working(f"attempt {turn.attempt}")
    if turn.attempt == 1:
        await asyncio.Event().wait()
    who = turn.caller
    return f"{refused} {who.id} {who.client} {who.actors} {sorted(who.scopes)}"


if __name__ == "__main__":
    serve(agent, port=int(sys.argv[1]), store=sys.argv[2], drain=2.0, caller=caller)
