"""Plans a trip with two other agents: one books the flight, one knows the time there.

    parley serve examples/flight_booking.py --port 9001
    parley serve examples/time_agent.py --port 9002
    parley serve examples/planner.py
    parley send "Plan a trip from Berlin to Tokyo"

Both are called at once. The flight agent asks for the day; that becomes a question of this agent,
and the answer goes to the flight agent:

    parley send --task-id ... "2027-03-14"

The calls are in the task's log. Kill this server while it waits, and start it again with the same
store (`--store sqlite:///tasks.db`): it asks for the answers, and sends nothing twice.
"""

import asyncio
import os

from parley import Agent, RemoteTaskFailed, Turn

FLIGHTS = os.environ.get("FLIGHTS", "http://localhost:9001")
CLOCK = os.environ.get("CLOCK", "http://localhost:9002")

agent = Agent(
    name="Planner", description="Plans trips, with the help of other agents", version="1.0.0"
)


@agent.skill(
    tags=["travel"], examples=["Plan a trip from Berlin to Tokyo on 2027-03-14"], replies="task"
)
async def plan(turn: Turn) -> str:
    """Plans a trip from one city to another."""
    city = turn.text.partition(" to ")[2].partition(" on ")[0].strip(" .") or "UTC"
    try:
        flight, clock = await asyncio.gather(
            turn.delegate(FLIGHTS, turn.text, progress=True),
            turn.delegate(CLOCK, f"What time is it in {city}?"),
        )
    except RemoteTaskFailed as error:
        turn.fail(f"There is no trip: {error.task.text}")
    return f"{flight.text}\n{clock.text}"
