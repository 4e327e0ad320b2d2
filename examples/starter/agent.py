"""My agent: says what a trip costs.

parley dev agent.py
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parley import Agent

agent = Agent("My agent", description="Says what a trip costs", version="0.1.0")


@dataclass
class Fare:
    """What a trip costs, in euros."""

    euros: float


@agent.skill(tags=["travel"], examples=['{"km": 120, "passengers": 2}'], invalid_input="ask")
async def fare(
    km: Annotated[float, Meta(gt=0)], passengers: Annotated[int, Meta(ge=1)] = 1
) -> Fare:
    """Returns the fare of a trip of so many kilometres; asks for what is missing."""
    return Fare(euros=round(3.5 + 0.25 * km * passengers, 2))
