"""The booking office: stands for the systems of airlines, hotels and car rentals.

It is a SQLite file that all desks share (``TRAVEL_OFFICE``). A booking has a reference of the
caller's: asked for twice with one reference, it is made once. ``journal`` has what was really done.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

from desk import Answer, Booking, Offer

STATEMENTS = Path(__file__).with_suffix(".sql").read_text("utf-8")
SQL = dict(re.findall(r"-- name: (\w+)\n(.*?)(?=\n-- name:|\Z)", STATEMENTS, re.DOTALL))

LOCAL = {"London": ("GBP", 1.3), "Helsinki": ("EUR", 1.1), "Rome": ("EUR", 1.0)}
"""The currency and the level of prices, by city; elsewhere it is as in Rome."""
OVERNIGHT = {"Helsinki"}
"""Where the cheapest flight arrives the next day."""


def flights(origin: str, destination: str, start: str, end: str, travellers: int) -> Answer:
    """Offer flights there and back; the price is for all travellers."""
    later = (date.fromisoformat(start) + timedelta(days=1)).isoformat()
    is_overnight = destination in OVERNIGHT
    way = f"Flight {origin} to {destination} and back"
    return _offer(
        "flight",
        [
            (f"{way}, one stop{', overnight' if is_overnight else ''}", 120 * travellers, 1),
            (f"{way}, direct", 210 * travellers, 2),
            (f"{way}, business class", 690 * travellers, 3),
        ],
        "EUR",
        start,
        end,
        first_starts=later if is_overnight else start,
    )


def hotels(city: str, start: str, end: str, travellers: int) -> Answer:
    """Offer rooms; one room has place for two."""
    nights = max((date.fromisoformat(end) - date.fromisoformat(start)).days, 1)
    rooms = -(-travellers // 2)
    currency, level = LOCAL.get(city, ("EUR", 1.0))
    names = (("Hostel", 60, 1), ("Hotel Central", 140, 2), ("Grand Hotel", 320, 3))
    priced = [(f"{name} {city}", each * level * nights * rooms, n) for name, each, n in names]
    return _offer("hotel", priced, currency, start, end)


def cars(city: str, start: str, end: str) -> Answer:
    """Offer cars."""
    days = (date.fromisoformat(end) - date.fromisoformat(start)).days + 1
    currency, level = LOCAL.get(city, ("EUR", 1.0))
    names = (("Small car", 30, 1), ("Family car", 55, 2), ("Convertible", 95, 3))
    priced = [(f"{name} in {city}", each * level * days, n) for name, each, n in names]
    return _offer("car", priced, currency, start, end)


def extras(kind: str, title: str, city: str, start: str, each: float, travellers: int) -> Answer:
    """Offer one thing in a city, for each traveller."""
    currency, level = LOCAL.get(city, ("EUR", 1.0))
    return _offer(kind, [(f"{title} {city}", each * level * travellers, 2)], currency, start, start)


def book(reference: str, offer: str, note: str = "") -> Answer:
    """Book an offer, once for each reference. Raises ``ValueError`` for an unknown offer."""
    with _office() as office:
        found = office.execute(SQL["offer"], {"id": offer.removeprefix("O-")}).fetchone()
        if found is None:
            raise ValueError(f"there is no offer {offer}")
        kind, title = found
        title = f"{title}, {note}" if note else title
        made = {"reference": reference, "offer": offer.removeprefix("O-"), "title": title}
        is_new = office.execute(SQL["add_booking"], made).rowcount == 1
        if is_new:
            office.execute(SQL["name_booking"], {"reference": reference, "kind": kind.upper()})
        *booked, _ = office.execute(SQL["booking"], {"key": reference}).fetchone()
        booking = Booking(*booked)
        if is_new:
            office.execute(SQL["note"], {"act": "book", "code": booking.code, "title": title})
    return Answer(f"Booked {booking.code}: {booking.title}.", booking=booking)


def cancel(code: str) -> Answer:
    """Cancel a booking. A second time does nothing. Raises ``ValueError`` for an unknown code."""
    with _office() as office:
        found = office.execute(SQL["booking"], {"key": code}).fetchone()
        if found is None:
            raise ValueError(f"there is no booking {code}")
        booking = Booking(*found[:-1])
        if office.execute(SQL["cancel"], {"code": code}).rowcount:
            note = {"act": "cancel", "code": code, "title": booking.title}
            office.execute(SQL["note"], note)
    return Answer(f"Cancelled {code}: {booking.title}.", booking=booking)


def journal() -> list[tuple[str, str, str]]:
    """Return what was really done, in order: the act (book or cancel), the code, the title."""
    with _office() as office:
        return office.execute(SQL["journal"]).fetchall()


def _offer(
    kind: str,
    priced: list[tuple[str, float, int]],
    currency: str,
    start: str,
    end: str,
    first_starts: str = "",
) -> Answer:
    offers = []
    with _office() as office:
        for n, (title, price, stars) in enumerate(priced):
            starts = first_starts if n == 0 and first_starts else start
            row = {"kind": kind, "title": title, "price": round(price, 2), "currency": currency}
            row |= {"stars": stars, "starts": starts, "ends": end}
            office.execute(SQL["add_offer"], row)
            number, *rest = office.execute(SQL["find_offer"], row).fetchone()
            offers.append(Offer(f"O-{number}", *rest))
    told = "; ".join(f"{each.id}: {each.title}, {each.price:.2f} {currency}" for each in offers)
    return Answer(f"{told}.", offers=offers)


@contextmanager
def _office() -> Iterator[sqlite3.Connection]:
    """Open the office for one transaction, alone."""
    office = sqlite3.connect(os.environ.get("TRAVEL_OFFICE", "bookings.db"), timeout=30)
    office.isolation_level = None
    try:
        office.executescript(SQL["schema"])
        office.execute("BEGIN IMMEDIATE")
        yield office
        office.execute("COMMIT")
    finally:
        office.close()
