"""Finds, books and cancels rental cars, and asks which gearbox: an agent of Strands.

    parley serve examples/travel_planner/cars.py
    parley send "Offer cars in London, 2027-07-10 to 2027-07-15"
    parley send "Book offer O-7"

It needs ``pip install "parley-a2a[strands]" openai``; without, a plain agent has its card.
"""

from __future__ import annotations

import re

import booking_office
import desk
import models

from parley import Agent, Execution, Turn

NAME = "Cars"
DESCRIPTION = "Finds, books and cancels rental cars."
INSTRUCTIONS = "Call one tool for each message, and return its result unchanged."
WHICH = "Which gearbox shall the car have, manual or automatic?"


def find_cars(city: str, start: str, end: str) -> str:
    """Find cars in a city. Days are such as 2027-07-10."""
    return desk.as_json(booking_office.cars(city, start, end))


def cancel_car(code: str) -> str:
    """Cancel a booking."""
    return desk.as_json(booking_office.cancel(code))


def gearbox_in(text: str) -> str:
    """Return the gearbox that a text names, or nothing."""
    found = re.search(r"\b(manual|automatic)\b", text, re.IGNORECASE)
    return found[1].lower() if found else ""


def with_strands() -> Agent:
    """Return the agent of Strands."""
    from parley.integrations import strands  # first: it says how to install it

    import strands as sdk  # isort: skip
    from pydantic import BaseModel
    from strands.models.openai import OpenAIModel

    class CarAnswer(BaseModel):
        """The answer of the desk: a sentence, and what it offers or has booked."""

        text: str
        offers: list[desk.Offer] = []
        booking: desk.Booking | None = None

    CarAnswer.model_rebuild(_types_namespace={"desk": desk})

    def book_car(offer: str, tool_context: sdk.ToolContext, gearbox: str = "") -> str:
        """Book an offer, by its id. Leave the gearbox out if the message does not name it."""
        times = 0
        while not gearbox_in(gearbox):
            times += 1
            gearbox = str(tool_context.interrupt(f"gearbox-{times}", reason=WHICH))
        reference = tool_context.invocation_state["reference"]
        return desk.as_json(booking_office.book(reference, offer, gearbox_in(gearbox)))

    book_car.__annotations__["tool_context"] = sdk.ToolContext
    client = {"base_url": models.url(), "api_key": models.KEY}
    clerk = sdk.Agent(
        name=NAME,
        description=DESCRIPTION,
        system_prompt=INSTRUCTIONS,
        model=OpenAIModel(client_args=client, model_id=models.NAME),
        tools=[sdk.tool(find_cars), sdk.tool(context=True)(book_car), sdk.tool(cancel_car)],
        structured_output_model=CarAnswer,
    )
    return strands.agent(
        clerk,
        description=DESCRIPTION,
        invocation_state=lambda turn: {"reference": desk.reference(turn)},
        lifespan=models.running,
        execution=Execution(max_attempts=models.ATTEMPTS),
    )


def without(missing: ImportError) -> Agent:
    """Return a plain agent with the same card and the same tools."""

    async def book_car(turn: Turn, offer: str, gearbox: str = "") -> str:
        """Book an offer, by its id. Leave the gearbox out if the message does not name it."""
        while not gearbox_in(gearbox):
            gearbox = (await turn.ask(WHICH)).text
        return desk.as_json(booking_office.book(desk.reference(turn), offer, gearbox_in(gearbox)))

    tools = [find_cars, book_car, cancel_car]
    return desk.plain(NAME, DESCRIPTION, INSTRUCTIONS, tools, missing)


try:
    agent = with_strands()
except ImportError as error:
    agent = without(error)
