"""Reminds you of something when it is time, even if the server was restarted meanwhile.

    parley serve examples/reminder.py
    parley send "in 90 seconds: look after the tea"
    parley send "in 2 days: water the plants"

A reminder sleeps in the store (parley.db): stop the server, start it again, and it comes in time.
"""

import re
from datetime import timedelta

from parley import Agent, Turn

UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}

agent = Agent("Reminder", description="Reminds you in time", version="1.0.0")


def parse(text: str) -> tuple[timedelta, str] | None:
    """Return how long to wait, and for what."""
    found = re.match(
        rf"in (\d{{1,5}}) ({'|'.join(UNITS)})s?:\s*(.+)", text, re.IGNORECASE | re.DOTALL
    )
    if found is None:
        return None
    return timedelta(seconds=int(found[1]) * UNITS[found[2].lower()]), found[3]


@agent.skill(tags=["time"], examples=["in 2 days: water the plants"], replies="task")
async def remind(turn: Turn) -> str:
    """Reminds you of something."""
    wanted = parse(turn.text)
    while wanted is None:
        wanted = parse((await turn.ask("When, and of what? (in 2 days: water the plants)")).text)
    span, what = wanted
    await turn.sleep(span, message=f"I will remind you in {span}.")
    return f"It is time: {what}"
