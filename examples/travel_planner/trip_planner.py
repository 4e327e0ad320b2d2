"""Understands what a traveller wants: an agent of a model, whose answer is data.

parley serve examples/travel_planner/trip_planner.py
parley send "- Five days in London in July, 4,000 USD"
"""

from __future__ import annotations

import calendar
import json
import re
from dataclasses import asdict
from datetime import date

import models
from trip import Goal, Kind, Wish

from parley import Execution
from parley.llm import ModelRequest, ScriptedReply, llm_agent

INSTRUCTIONS = """You are told what a traveller has said, the oldest first. Say what they want now;
later words change earlier ones. Leave out what they did not say. `wishes` are the things to book:
flight, hotel and car for a trip as a whole, or just those that they name; a tour is on snowmobiles,
a spa is added to the hotel. `after` names what has to be booked first: the flight for what they say
comes then or later, the hotel for a spa. No wishes are left when they call the trip off."""

MONTHS = {name.lower(): n for n, name in enumerate(calendar.month_name) if name}
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
NUMBER = rf"\d+|{'|'.join(WORDS)}|a"
KINDS: dict[str, Kind] = {"flight": "flight", "fly": "flight", "hotel": "hotel", "car": "car",
                          "snowmobile": "tour", "tour": "tour", "spa": "spa"}  # fmt: skip


def rules(request: ModelRequest) -> ScriptedReply | str:
    """Understand as a model would, where there is none."""
    today = re.search(r"Today is (\d{4}-\d\d-\d\d)", request.said)
    lines = re.findall(r"^- (.*)$", request.said, re.MULTILINE)
    return json.dumps(asdict(understood(lines, today[1] if today else "2027-01-01")))


def understood(lines: list[str], today: str) -> Goal:
    """Return what lines say, one after the other."""
    goal, month = Goal(), 0
    for line in lines:
        month = read_days(goal, line, month, date.fromisoformat(today))
        for name, pattern in (
            ("origin", r"\b[Ff]rom ([A-Z][\w-]*)"),
            ("destination", r"\b(?:in|to|[Mm]ake it) (?!{})([A-Z][\w-]*)"),
        ):
            months = "|".join(each.capitalize() for each in MONTHS)
            if found := re.search(pattern.replace("{}", months), line):
                setattr(goal, name, found[1])
        if found := re.search(r"([\d,.]*\d) ?(USD|EUR|GBP)", line):
            goal.budget, goal.currency = float(found[1].replace(",", "")), found[2]
        if found := re.search(
            rf"\b({NUMBER}) (?:of us|people|persons?|travellers?|adults?)", line, re.IGNORECASE
        ):
            goal.travellers = number(found[1])
        elif re.search(r"\b(?:alone|just me|only me)\b", line, re.IGNORECASE):
            goal.travellers = 1
        if found := re.search(r"\b(manual|automatic)\b", line, re.IGNORECASE):
            goal.gearbox = "manual" if found[1].lower() == "manual" else "automatic"
        read_wishes(goal, line)
    return goal


def read_days(goal: Goal, line: str, month: int, today: date) -> int:
    """Read when and for how long; return the month that is spoken of."""
    if found := re.search(rf"\b({NUMBER}) days?\b", line, re.IGNORECASE):
        goal.days = number(found[1])
    if found := re.search(r"\d{4}-\d\d-\d\d", line):
        goal.start = found[0]
    if found := re.search(rf"\b({'|'.join(MONTHS)})\b", line, re.IGNORECASE):
        month = MONTHS[found[1].lower()]
    day = re.search(rf"\b(\d+)(?:st|nd|rd|th)\b|\b(\d+) (?:of )?(?:{'|'.join(MONTHS)})", line, re.I)
    if month and day:
        try:
            first = today.replace(month=month, day=int(day[1] or day[2]))
            goal.start = (
                first if first >= today else first.replace(year=today.year + 1)
            ).isoformat()
        except ValueError:
            pass
    return month


def read_wishes(goal: Goal, line: str) -> None:
    """Read what is to be booked."""
    if re.search(r"\b(?:call|cancel)\b.*\b(?:off|everything|all|trip)\b", line, re.IGNORECASE):
        goal.wishes = []
        return
    is_first = not goal.wishes
    before: list[Kind] = [] if is_first else ["flight"]
    for part in re.split(r"\bthen\b", line, flags=re.IGNORECASE):
        for found in re.finditer(rf"\b(no |without (?:a )?)?({'|'.join(KINDS)})", part, re.I):
            kind = KINDS[found[2].lower()]
            goal.wishes = [each for each in goal.wishes if each.kind != kind or not found[1]]
            if not found[1] and all(each.kind != kind for each in goal.wishes):
                after: list[Kind] = ["hotel"] if kind == "spa" else before
                goal.wishes.append(Wish(kind, [] if kind == "flight" else list(after)))
        before = ["flight"]
    if is_first and not goal.wishes:
        goal.wishes = [Wish("flight"), Wish("hotel"), Wish("car")]


def number(word: str) -> int:
    """Return the number that a word or digits say."""
    word = word.lower()
    return int(word) if word.isdigit() else 1 if word == "a" else WORDS.index(word)


agent = llm_agent(
    "Trip planner",
    description="Understands what a traveller wants, as data.",
    instructions=INSTRUCTIONS,
    output=Goal,
    script=rules,
    model=models.NAME,
    api_key=models.KEY,
    memory_tokens=0,
    execution=Execution(max_attempts=models.ATTEMPTS),
    tags=["travel"],
)
