"""Changes money: typed inputs, a typed question, and a typed result.

    parley serve examples/currency.py
    parley send '{"amount": 100, "source": "EUR", "target": "USD"}'
    parley send "Change some money, please"

The first is data that fits, and is answered at once. The second is prose: the agent asks for what
it needs. A person answers `{"amount": 100}` and then `EUR`; a page shows a form, made from the
schema of the question. A large sum is handed over in person: the agent asks where and when.
"""

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal

from msgspec import Meta

from parley import Agent, Turn

Currency = Literal["EUR", "USD", "JPY"]
PER_EURO = {"EUR": 1.0, "USD": 1.08, "JPY": 170.0}
LARGE = 1_000


@dataclass
class Pickup:
    """Where and when money is handed over."""

    branch: Literal["Airport", "Station"]
    day: date


@dataclass
class Exchange:
    """The result of an exchange."""

    amount: float
    currency: Currency
    pickup: Pickup | None = None


agent = Agent("Currency exchange", description="Changes money", version="1.0.0")


@agent.skill(tags=["money"], invalid_input="ask", examples=['{"amount": 100, "source": "EUR"}'])
async def exchange(
    turn: Turn,
    amount: Annotated[float, Meta(gt=0, description="how much to change")],
    source: Currency,
    target: Currency = "EUR",
) -> Exchange:
    """Changes an amount of money into another currency."""
    made = round(amount / PER_EURO[source] * PER_EURO[target], 2)
    if amount / PER_EURO[source] < LARGE:
        return Exchange(made, target)
    pickup = await turn.ask("Where and when will you fetch the money?", answer=Pickup)
    return Exchange(made, target, pickup)


@agent.skill(tags=["money"])
async def quote(amount: float, target: Currency) -> float:
    """Says what an amount of euros is worth in another currency."""
    return round(amount * PER_EURO[target], 2)
