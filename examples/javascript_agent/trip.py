"""Plans a day in a city, with a local guide that is written in JavaScript.

    cd examples/javascript_agent && npm install && npm start
    parley serve examples/javascript_agent/trip.py
    parley send "Plan a day in Helsinki"

The guide asks for the city if it has to; that becomes a question of this agent, and the answer goes
to the guide:

    parley send "Plan a day"
    parley send --task-id ... "Tokyo"

What the guide says as it works is progress of this agent.
"""

import os

from parley import Agent, Turn

GUIDE = os.environ.get("GUIDE", "http://localhost:4000")

agent = Agent(name="Day planner", description="Plans a day in a city", version="1.0.0")


@agent.skill(tags=["travel"], examples=["Plan a day in Helsinki"], replies="task")
async def plan(turn: Turn) -> str:
    """Plans a day: three sights, from morning to evening."""
    guide = await turn.delegate(GUIDE, turn.text, progress=True)
    sights = [sight.strip() for sight in guide.text.split(".") if sight.strip()]
    times = ("In the morning", "At noon", "In the evening")
    return "\n".join(f"{when}: {sight}" for when, sight in zip(times, sights, strict=False))
