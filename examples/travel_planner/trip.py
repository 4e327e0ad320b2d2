"""What the traveller wants, as the planner understands it, and what has to be booked for that."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from typing import Any, Literal

Kind = Literal["flight", "hotel", "car", "tour", "spa"]


@dataclass
class Wish:
    """One thing to book; ``after`` names what has to be booked before it."""

    kind: Kind
    after: list[Kind] = field(default_factory=list)


@dataclass
class Goal:
    """What the traveller wants. What they have not said is empty or 0."""

    destination: str = ""
    origin: str = ""
    start: str = ""
    days: int = 0
    travellers: int = 0
    budget: float = 0.0
    currency: str = "USD"
    gearbox: Literal["", "manual", "automatic"] = ""
    wishes: list[Wish] = field(default_factory=list)

    def question(self) -> str:
        """Return one question for all that is missing; nothing if nothing is."""
        missing = [
            ("to which city you want to go", self.destination),
            ("from which city you leave", self.origin),
            ("on which day (2027-07-10)", is_day(self.start)),
            ("for how many days", self.days > 0),
            ("how many you are", self.travellers > 0),
        ]
        open_points = [words for words, known in missing if not known]
        if not open_points or not self.wishes:
            return ""
        *first, last = open_points
        return f"Please tell me {', '.join(first)}{', and ' if first else ''}{last}."

    def needs(self) -> list[Need]:
        """Return what has to be booked, what others wait for first."""
        end = (date.fromisoformat(self.start) + timedelta(days=self.days - 1)).isoformat()
        kinds = {wish.kind for wish in self.wishes}
        needs: list[Need] = []
        open_wishes = list({wish.kind: wish for wish in self.wishes}.values())
        while open_wishes:
            done = {need.kind for need in needs}
            ready = [w for w in open_wishes if not (set(w.after) & kinds) - done - {w.kind}]
            for wish in ready or open_wishes:  # a circle is broken
                after = [each for each in wish.after if each in done]
                place = (self.destination, self.origin if wish.kind == "flight" else "")
                needs.append(Need(wish.kind, *place, self.start, end, self.travellers, after))
            open_wishes = [w for w in open_wishes if w not in (ready or open_wishes)]
        return needs


@dataclass
class Need:
    """Something to book."""

    kind: Kind
    city: str
    origin: str
    start: str
    end: str
    travellers: int
    after: list[Kind]

    def is_met_by(self, held: Held) -> bool:
        """Return whether what is booked is this."""
        return {**asdict(self), "after": []} == {**held.need, "after": []}


@dataclass
class Held:
    """A booking that the traveller has, and what it was made for."""

    kind: Kind
    need: dict[str, Any]
    place: int
    reference: str
    code: str
    title: str
    price: float
    currency: str
    starts: str

    @property
    def told(self) -> dict[str, Any]:
        """What the traveller gets as data."""
        shown = ("kind", "code", "title", "price", "currency", "starts")
        return {name: getattr(self, name) for name in shown}

    @property
    def line(self) -> str:
        """A line that tells the traveller."""
        return f"{self.title} ({self.code}): {self.price:,.2f} {self.currency}"


def is_day(text: str) -> bool:
    """Return whether a text is a day that exists."""
    try:
        return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text) and date.fromisoformat(text))
    except ValueError:
        return False


def compare(needs: list[Need], booked: list[Held]) -> tuple[list[Held], list[Need]]:
    """Return what is booked and stays, and what is to be booked.

    What depends on something that changes changes with it.
    """
    kept: dict[Kind, Held] = {}
    new: list[Need] = []
    for need in needs:
        held = next((each for each in booked if need.is_met_by(each)), None)
        if held is not None and all(each in kept for each in need.after):
            kept[need.kind] = held
        else:
            new.append(need)
    return list(kept.values()), new
