"""Knows what to do in a city, and books tours: an agent of a model without a framework.

parley serve examples/travel_planner/guide.py
parley send "Suggest what to do in London"
parley send "Offer tours in Helsinki, 2027-02-11 to 2027-02-14, for 2 travellers"
"""

from __future__ import annotations

import booking_office
import desk
from desk import Answer

from parley import Turn

SIGHTS = {
    "London": "the Tower, a walk along the South Bank, and a play at the Globe",
    "Helsinki": "the sauna at the harbour, Suomenlinna, and the library Oodi",
    "Rome": "the Forum, Trastevere in the evening, and the Villa Borghese",
}


def suggest_sights(city: str) -> Answer:
    """Suggest what to do in a city."""
    return Answer(f"In {city} I suggest {SIGHTS.get(city, 'the old town and the market')}.")


def find_tours(city: str, start: str, travellers: int) -> Answer:
    """Find tours on snowmobiles. Days are such as 2027-07-10."""
    return booking_office.extras("tour", "Snowmobile tour near", city, start, 140, travellers)


async def book_tour(turn: Turn, offer: str) -> Answer:
    """Book a tour, by the id of its offer."""
    return booking_office.book(desk.reference(turn), offer)


def cancel_tour(code: str) -> Answer:
    """Cancel a booking."""
    return booking_office.cancel(code)


agent = desk.plain(
    "Local guide",
    "Knows what to do in a city, and books tours.",
    "Call one tool for each message, and return its result unchanged.",
    [suggest_sights, find_tours, book_tour, cancel_tour],
)
