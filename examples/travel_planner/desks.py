"""The other agents, as the orchestrator calls them: each once in the life of its task."""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import date
from typing import Any

import msgspec
from desk import Answer, Offer
from trip import Goal, Held, Need

import parley
from parley import A2AError, RemoteTaskFailed, Task, Turn

ADDRESSES = {
    "planner": os.environ.get("PLANNER", "http://localhost:9101"),
    "flights": os.environ.get("FLIGHTS", "http://localhost:9102"),
    "hotels": os.environ.get("HOTELS", "http://localhost:9103"),
    "cars": os.environ.get("CARS", "http://localhost:9104"),
    "exchange": os.environ.get("EXCHANGE", "http://localhost:9105"),
    "guide": os.environ.get("GUIDE", "http://localhost:9106"),
}
DESKS = {"flight": "flights", "hotel": "hotels", "spa": "hotels", "car": "cars", "tour": "guide"}
"""Which agent books what."""

PATIENT = 40
"""How often a call is repeated: a desk that has died is waited for, about two minutes."""


class Desks:
    """The other agents, called by a turn.

    ``key`` names a call within the task: after a crash its answer comes from the task's log.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    async def call(self, name: str, text: str, key: str, **options: Any) -> parley.Answer[Any]:
        """Send a message to an agent, and return its answer; it may be a question."""
        async with self._turn.connect(ADDRESSES[name], retries=PATIENT) as remote:
            return await self._turn.delegate(remote, text, key=key, pass_questions=False, **options)

    async def goal(self, said: list[str], key: str) -> Goal:
        """Return what the traveller wants, as the planner understands it."""
        today = await self._turn.step(f"today {key}", lambda: date.today().isoformat())
        lines = "\n".join(f"- {' '.join(each.split())}" for each in said)
        told = await self.call("planner", f"Today is {today}. They said:\n{lines}", f"goal {key}")
        return msgspec.convert(data_of(told), Goal)

    async def offers(self, need: Need, key: str) -> list[Offer]:
        """Return what there is for a need, the cheapest first: nothing if the desk has failed."""
        days = f"{need.start} to {need.end}, for {need.travellers} travellers"
        where = f"from {need.origin} to {need.city}" if need.origin else f"in {need.city}"
        text = f"Offer {need.kind}s {where}, {days}."
        try:
            told = await self.call(DESKS[need.kind], text, f"offers {need.kind} {key}")
        except RemoteTaskFailed as error:
            self._turn.log.warning("no offers of %ss: %s", need.kind, error)
            return []
        answer = msgspec.convert(data_of(told), Answer)
        return sorted(answer.offers, key=lambda offer: offer.price)

    async def cancel(self, held: Held) -> None:
        """Cancel a booking."""
        await self.call(
            DESKS[held.kind], f"Cancel booking {held.code}.", f"cancel {held.reference}"
        )

    async def stop(self, name: str, task: Task) -> None:
        """Cancel a task that waits for an answer."""
        async with self._turn.connect(ADDRESSES[name], retries=PATIENT) as remote:
            with contextlib.suppress(A2AError):  # it has ended
                await remote.cancel(task)

    async def rates(self, goal: Goal, currencies: set[str], key: str) -> dict[str, float]:
        """Return how much of each currency one unit of the budget's is."""
        amount = round(goal.budget or 100, 2)

        async def rate(currency: str) -> float:
            text = f"How much are {amount:g} {goal.currency} in {currency}?"
            return float(data_of(await self.call("exchange", text, f"{text} {key}"))["rate"])

        others = sorted(currencies - {goal.currency})
        found = await asyncio.gather(*(rate(each) for each in others))
        return {goal.currency: 1.0, **dict(zip(others, found, strict=True))}

    async def suggestion(self, city: str, key: str) -> str:
        """Return what the local guide suggests."""
        told = await self.call("guide", f"Suggest what to do in {city}.", f"suggest {key}")
        return str(data_of(told)["text"])


def data_of(answer: parley.Answer[Any]) -> dict[str, Any]:
    """Return the data of an answer. Raises ``ValueError`` if it has none."""
    if isinstance(answer.data, dict):
        return answer.data
    raise ValueError(f"an answer without data: {answer.text[:200]}")
