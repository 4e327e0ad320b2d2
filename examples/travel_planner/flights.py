"""Finds, books and cancels flights: an agent of the OpenAI Agents SDK.

    parley serve examples/travel_planner/flights.py
    parley send "Offer flights from Berlin to London, 2027-07-10 to 2027-07-15, for 2 travellers"
    parley send "Book offer O-1"

It needs ``pip install "parley-a2a[openai-agents]"``; without, a plain agent has its card.
"""

from __future__ import annotations

import booking_office
import desk
import models

from parley import Agent, Execution, Turn

NAME = "Flights"
DESCRIPTION = "Finds, books and cancels flights."
INSTRUCTIONS = "Call one tool for each message, and return its result unchanged."


def find_flights(origin: str, destination: str, start: str, end: str, travellers: int) -> str:
    """Find flights there and back. Days are such as 2027-07-10."""
    found = booking_office.flights(origin, destination, start, end, travellers)
    return desk.as_json(found)


def cancel_flight(code: str) -> str:
    """Cancel a booking."""
    return desk.as_json(booking_office.cancel(code))


def with_the_sdk() -> Agent:
    """Return the agent of the OpenAI Agents SDK."""
    from parley.integrations import openai_agents  # first: it says how to install the SDK

    import agents  # isort: skip
    from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)

    def book_flight(context: agents.RunContextWrapper[str], offer: str) -> str:
        """Book an offer, by its id."""
        return desk.as_json(booking_office.book(context.context, offer))

    book_flight.__annotations__["context"] = agents.RunContextWrapper[str]
    client = AsyncOpenAI(base_url=models.url(), api_key=models.KEY)
    clerk = agents.Agent(
        name=NAME,
        instructions=INSTRUCTIONS,
        tools=[agents.function_tool(each) for each in (find_flights, book_flight, cancel_flight)],
        output_type=desk.Answer,
        model=OpenAIChatCompletionsModel(models.NAME, client),
    )
    return openai_agents.agent(
        clerk,
        description=DESCRIPTION,
        context=desk.reference,
        lifespan=models.running,
        execution=Execution(max_attempts=models.ATTEMPTS),
    )


def without(missing: ImportError) -> Agent:
    """Return a plain agent with the same card and the same tools."""

    async def book_flight(turn: Turn, offer: str) -> str:
        """Book an offer, by its id."""
        return desk.as_json(booking_office.book(desk.reference(turn), offer))

    book_flight.__annotations__["turn"] = Turn
    tools = [find_flights, book_flight, cancel_flight]
    return desk.plain(NAME, DESCRIPTION, INSTRUCTIONS, tools, missing)


try:
    agent = with_the_sdk()
except ImportError as error:
    agent = without(error)
