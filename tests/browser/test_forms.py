"""Forms made from JSON Schemas: of what skills take."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Any, Literal

import pytest
from playwright.async_api import Locator, Page, expect
from pydantic import BaseModel

import parley
from parley import Agent, AgentExtension, Turn
from parley.server.run import serving
from tests.browser.agents import log
from tests.kit.browser import opened

pytestmark = pytest.mark.anyio


class Cabin(Enum):
    ECONOMY = "economy"
    FIRST = "first"


@dataclass
class Stop:
    city: str
    nights: int = 1


@dataclass
class Journey:
    """A destination, and the details of a journey."""

    to: str
    day: date
    cabin: Cabin
    travellers: int
    insured: bool
    photo: bytes = b""
    budget: float | None = None
    home: Stop | None = None
    stops: list[Stop] = field(default_factory=list)
    extras: dict[str, int] = field(default_factory=dict)
    kind: Literal["trip"] = "trip"
    anything: Any = None


class Place(BaseModel):
    city: str
    nights: int = 1


class Trip(BaseModel):
    """A pydantic model, because pydantic reports every wrong field and msgspec the first only."""

    to: str
    travellers: int
    home: Place | None = None
    stops: list[Place] = []


def echoing(taken: list[Any], kind: Any = Journey) -> Agent:
    agent = Agent("Forms")

    @agent.skill(replies="task")
    async def book(journey: kind) -> str:
        """Books a journey."""
        taken.append(journey)
        return f"booked for {journey.to}"

    return agent


async def opened_form(page: Page) -> Locator:
    await page.get_by_role("button", name="Fill in the form").first.click()
    return page.locator(".composer form")


def labelled(form: Locator, name: str) -> Locator:
    """Return the fields with this name."""
    return (
        form.locator(".entry")
        .filter(has=form.page.locator(f":scope > label bdi.name:text-is({json.dumps(name)})"))
        .locator(":scope > :is(input, select, textarea), :scope > label > input")
    )


async def fill(form: Locator, name: str, value: str | bool) -> None:
    field = labelled(form, name).last
    if isinstance(value, bool):
        await field.set_checked(value)
    elif await field.evaluate("field => field.tagName === 'SELECT'"):
        await field.select_option(label=value)
    else:
        await field.fill(value)


async def expand(form: Locator, name: str) -> None:
    """Open a group of optional fields."""
    await form.locator("details.group > summary", has_text=name).click()


async def send(form: Locator) -> None:
    await form.get_by_role("button", name="Send").click()


async def test_a_typed_skill_is_called_with_what_its_form_says(browser):
    taken: list[Any] = []
    app = parley.asgi(echoing(taken))
    async with serving(app) as url, opened(browser, url) as page:
        form = await opened_form(page)
        await fill(form, "to", 'Lisboa "é"')
        await fill(form, "day", "2027-03-14")
        await fill(form, "cabin", "first")
        await fill(form, "travellers", "2")
        await fill(form, "insured", True)
        picture = {"name": "x.png", "mimeType": "image/png", "buffer": b"\x00\xffpicture"}
        await labelled(form, "photo").set_input_files([picture])
        await fill(form, "budget", "1500.50")
        await fill(form, "anything", '{"deep": [1, 12345678901234567890]}')
        await expand(form, "home")
        await fill(form, "city", "Berlin")
        await expand(form, "stops")
        await form.get_by_role("button", name="Add an item").click()
        await expect(labelled(form, "city")).to_have_count(2)
        await expect(labelled(form, "city").last).to_be_focused()
        await fill(form, "city", "Porto")
        await expand(form, "extras")
        await form.get_by_role("button", name="Add a member").click()
        await form.get_by_label("Name", exact=True).fill("bags")
        await form.locator(".item").last.locator("[inputmode]").fill("3")
        await send(form)
        await expect(log(page)).to_contain_text("booked for")
        await expect(form.locator(".wrong")).to_have_count(0)
    assert taken == [
        Journey(
            to='Lisboa "é"',
            day=date(2027, 3, 14),
            cabin=Cabin.FIRST,
            travellers=2,
            insured=True,
            photo=b"\x00\xffpicture",
            budget=1500.5,
            home=Stop("Berlin"),
            stops=[Stop("Porto")],
            extras={"bags": 3},
            anything={"deep": [1, 12345678901234567890]},
        )
    ]


async def test_what_is_left_empty_is_left_out_and_json_says_the_same(browser):
    taken: list[Any] = []
    async with serving(parley.asgi(echoing(taken))) as url, opened(browser, url) as page:
        form = await opened_form(page)
        for name, value in (("to", "x"), ("day", "2027-03-14"), ("travellers", "1")):
            await fill(form, name, value)
        await fill(form, "cabin", "economy")
        await form.get_by_role("button", name="JSON", exact=True).click()
        written = json.loads(await form.locator("textarea").input_value())
        assert written == {
            "to": "x",
            "day": "2027-03-14",
            "cabin": "economy",
            "travellers": 1,
            "insured": False,
            "kind": "trip",
        }
        await form.locator("textarea").fill("{no")
        await send(form)
        await expect(form.locator(".wrong")).to_contain_text("expected JSON")
        await form.get_by_role("button", name="JSON", exact=True).click()
        await send(form)
        await expect(log(page)).to_contain_text("booked for x")
    assert taken == [Journey("x", date(2027, 3, 14), Cabin.ECONOMY, 1, False)]


async def test_what_is_wrong_is_said_beside_its_field(browser):
    """Nested fields and list items are marked too; the first wrong field gets the focus."""
    taken: list[Any] = []
    app = parley.asgi(echoing(taken, Trip))
    async with serving(app) as url, opened(browser, url) as page:
        form = await opened_form(page)
        await fill(form, "to", "x")
        await expand(form, "home")
        await expand(form, "stops")
        await form.get_by_role("button", name="Add an item").click()
        await send(form)
        await expect(form.locator(".wrong")).to_have_count(3)
        wrong = form.locator(".entry:has(> .wrong) bdi.name")
        assert await wrong.all_text_contents() == ["travellers", "city", "city"]
        described = await form.locator("[aria-invalid=true]").evaluate_all(
            "all => all.map((each) => document.getElementById("
            "each.getAttribute('aria-describedby').split(' ').at(-1)).textContent)"
        )
        assert all("required" in words for words in described)
        await expect(labelled(form, "travellers")).to_be_focused()
        await fill(form, "travellers", "one")
        await send(form)
        await expect(form.locator(".wrong")).to_have_text(["expected a whole number"])
        await fill(form, "travellers", "1")
        await expand(form, "home")
        await expand(form, "stops")
        await send(form)
        await expect(log(page)).to_contain_text("booked for x")
        await expect(form.locator(".wrong")).to_have_count(0)
    assert len(taken) == 1


SCHEMA = {
    "$defs": {
        "Node": {
            "type": "object",
            "title": "Node",
            "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}},
            "required": ["name"],
        },
        "Card": {
            "type": "object",
            "title": "Card",
            "properties": {"kind": {"const": "card"}, "number": {"type": "string"}},
            "required": ["kind", "number"],
        },
        "Cash": {"type": "object", "title": "Cash", "properties": {"kind": {"const": "cash"}}},
    },
    "type": "object",
    "properties": {
        "list": {"$ref": "#/$defs/Node", "description": "A <b>chain</b>"},
        "pay": {"oneOf": [{"$ref": "#/$defs/Card"}, {"$ref": "#/$defs/Cash"}]},
        "level": {"enum": [1, 2, None]},
        "size": {"type": ["integer", "null"], "default": 7},
        "both": {"allOf": [{"$ref": "#/$defs/Cash"}, {"properties": {"tip": {"type": "number"}}}]},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "odd": {"$ref": "#/$defs/Missing"},
    },
    "required": ["list", "level", "pair"],
}


async def test_schemas_of_every_kind_have_a_form(browser):
    """References, recursive too, alternatives, null, defaults, tuples, and unknown keywords."""
    taken: list[Any] = []
    params = {"skills": {"take": {"input": SCHEMA}}}
    extension = AgentExtension(uri="urn:parley:skill-schemas:v1", params=params)
    agent = Agent("Declared", extensions=[extension])

    @agent.skill
    async def take(turn: Turn) -> str:
        """Takes what comes."""
        taken.append((turn.data, turn.metadata["skill"]))
        return "taken"

    async with serving(parley.asgi(agent)) as url, opened(browser, url) as page:
        form = await opened_form(page)
        await fill(form, "name", "first")
        await expand(form, "next")
        await expect(labelled(form, "name")).to_have_count(2)
        await fill(form, "name", "second")
        await fill(form, "pay", "Card")
        await fill(form, "number", "4242")
        await fill(form, "level", "2")
        await fill(form, "1", "a")
        await fill(form, "2", "5")
        await fill(form, "maybe", "no")
        await fill(form, "odd", "[null]")
        assert "A <b>chain</b>" in await form.locator(".hint").all_text_contents()
        await send(form)
        await expect(log(page).locator(".theirs")).to_contain_text("taken")
    [(data, skill)] = taken
    assert skill == "take"
    assert data == {
        "list": {"name": "first", "next": {"name": "second"}},
        "pay": {"kind": "card", "number": "4242"},
        "level": 2,
        "size": 7,
        "pair": ["a", 5],
        "maybe": False,
        "odd": [None],
    }
