"""Finds, books and cancels hotel rooms, and adds a spa to them: an agent of Pydantic AI.

    parley serve examples/travel_planner/hotels.py
    parley send "Offer hotels in London, 2027-07-10 to 2027-07-15, for 2 travellers"
    parley send "Book offer O-4"

It needs ``pip install "parley-a2a[pydantic-ai]" openai``; without, a plain agent has its card.
"""

from __future__ import annotations

import booking_office
import desk
import models
from desk import Answer

from parley import Agent, Execution, Turn

NAME = "Hotels"
DESCRIPTION = "Finds, books and cancels hotel rooms, and adds a spa to them."
INSTRUCTIONS = "Call one tool for each message, and return its result unchanged."


def find_hotels(city: str, start: str, end: str, travellers: int) -> Answer:
    """Find hotels in a city. Days are such as 2027-07-10."""
    return booking_office.hotels(city, start, end, travellers)


def find_spas(city: str, start: str, travellers: int) -> Answer:
    """Find what the spas of hotels in a city cost."""
    return booking_office.extras("spa", "Spa of the hotel in", city, start, 45, travellers)


def cancel_hotel(code: str) -> Answer:
    """Cancel a booking: of a room, or of what was added to it."""
    return booking_office.cancel(code)


def with_pydantic_ai() -> Agent:
    """Return the agent of Pydantic AI."""
    from parley.integrations import pydantic_ai  # first: it says how to install it

    import pydantic_ai as ai  # isort: skip
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=models.url(), api_key=models.KEY)
    clerk = ai.Agent(
        OpenAIChatModel(models.NAME, provider=provider),
        name=NAME,
        instructions=INSTRUCTIONS,
        tools=[find_hotels, find_spas, cancel_hotel],
        output_type=Answer,
        deps_type=str,
    )

    def book_hotel(context: ai.RunContext[str], offer: str) -> Answer:
        """Book the offer of a hotel, by its id."""
        return booking_office.book(context.deps, offer)

    def add_spa(context: ai.RunContext[str], offer: str, code: str) -> Answer:
        """Add the offer of a spa to the booking of a hotel."""
        return booking_office.book(context.deps, offer, f"added to {code}")

    for each in (book_hotel, add_spa):
        each.__annotations__["context"] = ai.RunContext[str]
        clerk.tool(each)
    return pydantic_ai.agent(
        clerk,
        description=DESCRIPTION,
        deps_of=desk.reference,
        lifespan=models.running,
        execution=Execution(max_attempts=models.ATTEMPTS),
    )


def without(missing: ImportError) -> Agent:
    """Return a plain agent with the same card and the same tools."""

    async def book_hotel(turn: Turn, offer: str) -> Answer:
        """Book the offer of a hotel, by its id."""
        return booking_office.book(desk.reference(turn), offer)

    async def add_spa(turn: Turn, offer: str, code: str) -> Answer:
        """Add the offer of a spa to the booking of a hotel."""
        return booking_office.book(desk.reference(turn), offer, f"added to {code}")

    tools = [find_hotels, find_spas, book_hotel, add_spa, cancel_hotel]
    return desk.plain(NAME, DESCRIPTION, INSTRUCTIONS, tools, missing)


try:
    agent = with_pydantic_ai()
except ImportError as error:
    agent = without(error)
