"""What the desks of the travel planner answer, and how each is served.

A desk is a specialist: flights, hotels, cars, the guide. Its tools return an ``Answer``, and its
model gives the caller an ``Answer`` too, as data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import models
import msgspec

from parley import Agent, Execution, Turn
from parley.llm import llm_agent


@dataclass
class Offer:
    """Something that can be booked. ``starts`` and ``ends`` are days, such as 2027-07-10."""

    id: str
    title: str
    price: float
    currency: str
    stars: int
    starts: str
    ends: str


@dataclass
class Booking:
    """Something that is booked; ``code`` cancels it."""

    code: str
    title: str
    price: float
    currency: str
    starts: str
    ends: str


@dataclass
class Answer:
    """The answer of a desk: a sentence, and what it offers or has booked."""

    text: str
    offers: list[Offer] = field(default_factory=list)
    booking: Booking | None = None


def as_json(answer: Answer) -> str:
    """Return an answer as JSON, for frameworks whose tools return text."""
    return msgspec.json.encode(answer).decode()


def reference(turn: Turn) -> str:
    """Return what identifies a booking, however often it is asked for: the caller's reference.

    The same task has the same reference, also after a crash.
    """
    return str(turn.metadata.get("booking") or turn.task_id)


def plain(
    name: str,
    description: str,
    instructions: str,
    tools: Iterable[Callable[..., Any]],
    instead_of: ImportError | None = None,
) -> Agent:
    """Return a desk without a framework: for one that has none, or whose is not installed."""
    if instead_of is not None:
        logging.getLogger("travel").warning("%s. Until then it runs as a plain agent.", instead_of)
    return llm_agent(
        name,
        description=description,
        instructions=instructions,
        tools=tools,
        output=Answer,
        script=models.rules,
        model=models.NAME,
        api_key=models.KEY,
        skill_id="run",
        execution=Execution(max_attempts=models.ATTEMPTS),
        tags=[each.__name__ for each in tools],
    )
