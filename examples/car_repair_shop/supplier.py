"""Sells parts: says what is in stock, lets buyers choose the delivery, and haggles a little.

    parley serve examples/car_repair_shop/supplier.py --port 9102
    parley send -a http://localhost:9102 '{"part": "12345", "make": "Toyota", "model": "Camry"}'

The mechanic calls it. What it asks, the mechanic passes on.
"""

import re
import secrets
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta

from parley import Agent, Turn

EXPRESS, STANDARD = 1, 6  # hours
EXPRESS_COSTS = 19.0  # EUR
DISCOUNT = 0.05


class Stocked(NamedTuple):
    """A part on the shelf: what it is, what it fits, its price in EUR, and how many there are."""

    name: str
    fits: tuple[str, ...]
    price: float
    count: int


STOCK = {
    "12345": Stocked("ignition coils", ("toyota camry", "toyota rav4"), 129.0, 3),
    "23456": Stocked("head gasket", ("toyota camry",), 74.0, 0),
}


@dataclass
class Ordered:
    """An order: its number, the part, the price in EUR with delivery, and when it comes."""

    order: str
    part: str
    name: str
    price: float
    hours: int


agent = Agent("Parts supplier", description="Sells parts of cars, and delivers them")


@agent.skill(replies="task", invalid_input="ask", tags=["parts"])
async def order_part(
    turn: Turn,
    part: Annotated[str, Meta(pattern="^#?[0-9]{5}$", description="five digits, such as 12345")],
    make: str,
    model: str,
    year: int = 0,
) -> Ordered:
    """Sells a part for a car: whether it is there, for how much, and when it comes."""
    part = part.lstrip("#")
    car = f"{make} {model}"
    found = STOCK.get(part)
    if found is None:
        turn.reject(f"There is no part #{part}.")
    if car.lower() not in found.fits:
        turn.reject(f"Part #{part}, {found.name}, does not fit a {car}.")
    if not found.count:
        turn.reject(f"Part #{part}, {found.name}, is out of stock.")
    price, offer = found.price, f"Part #{part}, {found.name}, is in stock for a {car} {year or ''}"
    question = f"{offer.strip()}: {terms(price)}"
    while True:
        choice = chosen((await turn.ask(question)).text)
        if choice == "no":
            turn.reject(f"Part #{part} was not ordered.")
        if choice in ("express", "standard"):
            break
        if choice == "cheaper" and price == found.price:
            price = round(price * (1 - DISCOUNT), 2)
            question = f"For you: {terms(price)}"
        else:
            question = f"I can do no better. {terms(price)}" if choice else terms(price)
    number = await turn.step("ordered", lambda: f"S-{secrets.token_hex(3).upper()}")
    is_express = choice == "express"
    return Ordered(
        order=number,
        part=part,
        name=found.name,
        price=price + (EXPRESS_COSTS if is_express else 0),
        hours=EXPRESS if is_express else STANDARD,
    )


def terms(price: float) -> str:
    """Say what a part costs, and ask for the delivery."""
    return (
        f"{price:.2f} EUR, delivered in {STANDARD} hours (standard), or in {EXPRESS} for "
        f"{EXPRESS_COSTS:.2f} EUR more (express). Standard, express, or no?"
    )


def chosen(text: str) -> str:
    """Return what an answer chooses: express, standard, cheaper, no; empty if it is not clear."""
    for choice, words in (
        ("cheaper", r"cheaper|discount|expensive|better price|less"),
        ("express", r"express|fast|urgent|soon"),
        ("standard", r"standard|wait|slow"),
        ("no", r"no|not|cancel|never"),
    ):
        if re.search(rf"\b({words})\b", text.lower()):
            return choice
    return ""
