"""What the tests of the page have in common: agents, and steps of a person."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from typing import Literal

from playwright.async_api import Locator, Page, expect

from parley import Agent, Part, Turn

LOG = ".log"
COMPOSER = "textarea.message"
COMPLETED = "[data-state=TASK_STATE_COMPLETED]"

# One red pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8"
    "cfc000000301010018dd8db00000000049454e44ae426082"
)
MARKDOWN = """# Tides

Water **rises** and falls, see [a table](https://example.com/tides).

| place | metres |
|---|---|
| Brest | 6.9 |
"""


@dataclass
class Stay:
    """The days of a stay."""

    arrival: date
    nights: int
    room: Literal["single", "double"] = "single"


class Harbour:
    """An agent of all trades; ``gate`` holds up its streams."""

    def __init__(self, name: str = "Harbour") -> None:
        self.gate = asyncio.Event()
        self.taken: list[object] = []
        self.agent = agent = Agent(name, description="Knows the sea", version="2.1")

        @agent.skill(tags=["tides"], examples=["When is high water?"])
        async def tides(turn: Turn) -> str:
            """Tells about tides."""
            return MARKDOWN

        @agent.skill(replies="task")
        async def book(stay: Stay) -> str:
            """Books a stay."""
            self.taken.append(stay)
            return f"Booked {stay.nights} nights."

        @agent.skill
        async def report(turn: Turn) -> AsyncIterator[str]:
            """Writes a report in pieces."""
            yield "one "
            await self.gate.wait()
            yield "two "
            yield "three"

        @agent.skill(replies="task")
        async def plan(turn: Turn) -> str:
            """Asks what it needs."""
            stay = await turn.ask("When will you come?", answer=Stay)
            note = await turn.ask("Anything else?")
            return f"{stay.arrival} {stay.nights} {note.text}"

        @agent.skill(replies="task")
        async def files(turn: Turn) -> list[Part]:
            """Sends files."""
            self.taken += [(each.filename, each.raw) for each in turn.message.parts if each.raw]
            return [
                Part(raw=PNG, media_type="image/png", filename="pixel.png"),
                Part(
                    raw=b"<script>top.taken = 1</script>", media_type="text/html", filename="a.html"
                ),
                Part(data=[{"port": "Brest", "tide": 6.9}, {"port": "Dover", "tide": 5.9}]),
                Part(url="https://example.com/far.png", media_type="image/png"),
            ]


async def say(page: Page, words: str, skill: str = "") -> None:
    """Write a message and send it with Enter."""
    await page.wait_for_selector(COMPOSER)
    if skill:
        await page.locator(".options select").select_option(skill)
        text = page.get_by_role("button", name="Text", exact=True)
        if await text.count():
            await text.click()
    await page.fill(COMPOSER, words)
    await page.press(COMPOSER, "Enter")


def log(page: Page) -> Locator:
    return page.locator(LOG)


async def completed(page: Page) -> None:
    """Wait until the task of the conversation is completed."""
    await expect(page.locator(f"{LOG} {COMPLETED}").last).to_be_visible()


async def fits(page: Page) -> bool:
    """Return whether nothing makes the page wider than its window."""
    sizes = "[document.documentElement.scrollWidth, innerWidth]"
    needed, there_is = await page.evaluate(sizes)
    return bool(needed <= there_is)
