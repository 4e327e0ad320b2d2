"""Books a flight, and asks for what it was not told.

    parley serve examples/flight_booking.py --missing-version 1.0
    parley send "Book a flight from Berlin to Lisbon"

The answer is a task that waits for the day (input-required); send the day to that task:

    parley send --task-id ... "2027-03-14"

The function runs from the top for every message of its task. `turn.ask` and `turn.step` remember
what they returned, so a question is asked once and a flight is booked once, even when the server
is killed in between.
"""

import re
import secrets
from datetime import date

from parley import Agent, Part, Turn

agent = Agent(
    name="Flight agent",
    description="Books flights, and asks for what it was not told",
    version="1.0.0",
)


@agent.skill(
    tags=["travel"],
    examples=["Book a flight from Berlin to Lisbon on 2027-03-14", "I need a flight to Oslo"],
    replies="task",
)
async def book_flight(turn: Turn) -> list[Part]:
    """Books a flight from one city to another on a day."""
    origin, destination = city_after("from", turn.text), city_after("to", turn.text)
    if not origin:
        answer = (await turn.ask("Where do you fly from?", key="origin")).text
        origin = city_after("from", answer) or answer.strip()
        destination = destination or city_after("to", answer)
    if not destination:
        destination = (await turn.ask("Where do you fly to?", key="destination")).text.strip()
    day = day_in(turn.text)
    questions = 0
    while day is None:
        questions += 1
        answer = await turn.ask("On what day? Say it as 2027-03-14.", key=f"day-{questions}")
        day = day_in(answer.text)
    if origin.lower() == destination.lower():
        turn.reject(f"You are in {destination} already.")

    await turn.working(f"Booking {origin} to {destination} on {day}")
    booking = await turn.step("book", book, origin, destination, day.isoformat())
    booked = f"Booked: {origin} to {destination} on {day}. Your code is {booking['code']}."
    return [Part(text=booked), Part(data=booking)]


def book(origin: str, destination: str, day: str) -> dict[str, str]:
    """Book a seat. A real one would call an airline, once."""
    return {"code": secrets.token_hex(3).upper(), "from": origin, "to": destination, "day": day}


def city_after(word: str, text: str) -> str:
    """Return the capitalised name that follows ``word`` in ``text``, or nothing."""
    found = re.search(rf"\b(?i:{word})\s+([A-Z][\w'-]*(?:\s+[A-Z][\w'-]*)*)", text)
    return found[1] if found else ""


def day_in(text: str) -> date | None:
    """Return the day that ``text`` names, if it names one that exists."""
    for written in re.findall(r"\d{4}-\d{2}-\d{2}", text):
        try:
            return date.fromisoformat(written)
        except ValueError:
            continue
    return None
