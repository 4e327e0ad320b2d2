"""Forms made from JSON Schemas on an agent's page: for the inputs of skills and for questions."""

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
from parley import Agent, AgentExtension, Message, Part, Turn
from parley.model.parts import Role
from parley.server.run import serving
from tests.kit.browser import opened

pytestmark = pytest.mark.anyio

FORM = "#skills .input"
ANSWER = f"{FORM} .answer"
SAID = f"{ANSWER} .said >> nth=-1"


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
    budget: float | None = None
    note: str | None = None
    home: Stop | None = None
    stops: list[Stop] = field(default_factory=list)
    extras: dict[str, int] = field(default_factory=dict)
    kind: Literal["trip"] = "trip"
    anything: Any = None


@dataclass
class Dates:
    first: date
    nights: int


class Place(BaseModel):
    city: str
    nights: int = 1


class Trip(BaseModel):
    """A pydantic model, because pydantic reports every wrong field and msgspec the first only."""

    to: str
    day: date
    cabin: Cabin
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


async def open_form(page: Page, skill: int = 1) -> None:
    form = f"#skills li:nth-of-type({skill}) .input"
    await page.click(f"{form} > summary")
    await page.wait_for_selector(f"{form}[open]")


def labelled(page: Page, label: str, within: str = FORM) -> Locator:
    """Return the field with this label."""
    named = f"self::label[node()[1] = {json.dumps(label)} or .//span = {json.dumps(label)}]"
    fields = "*[self::input or self::select or self::textarea]"
    return page.locator(f"{within} label").locator(f"xpath={named}//{fields}").first


async def fill(page: Page, label: str, value: str | bool, within: str = FORM) -> None:
    """Enter a value into the field with this label, as a user does."""
    field = labelled(page, label, within)
    if isinstance(value, bool):
        await field.set_checked(value)
    elif await field.evaluate("field => field.tagName === 'SELECT'"):
        await field.select_option(label=value)
    else:
        await field.fill(value)


async def press(page: Page, words: str, within: str = FORM) -> None:
    """Press the last button with this text."""
    await page.locator(f"{within} button:visible").get_by_text(words, exact=True).last.click()


async def groups(page: Page, *, is_open: bool) -> None:
    """Open or close the groups of optional fields."""
    found = f"document.querySelectorAll('{FORM} details.group')"
    await page.evaluate(f"{found}.forEach((each) => {{ each.open = {json.dumps(is_open)}; }})")


async def ended(page: Page) -> None:
    """Wait until the stream that answers the form ends."""
    await expect(page.locator(f"{ANSWER} .status").first).to_contain_text("ended")


async def texts(page: Page, selector: str) -> list[str]:
    """Return the texts that are visible."""
    return await page.locator(f"{selector}:visible").all_text_contents()


async def test_a_typed_skill_is_called_with_what_its_form_says(browser):
    taken: list[Any] = []
    app = parley.asgi(echoing(taken))
    async with serving(app) as url, opened(browser, f"{url}/docs") as page:
        await open_form(page)
        await fill(page, "to", 'Lisboa "é"')
        await fill(page, "day", "2027-03-14")
        await fill(page, "cabin", "first")
        await fill(page, "travellers", "2")
        await fill(page, "insured", True)
        await fill(page, "budget", "1500.50")
        await fill(page, "anything", '{"deep": [1, 12345678901234567890]}')
        await groups(page, is_open=True)
        await labelled(page, "city").wait_for()
        await fill(page, "city", "Berlin")
        await press(page, "Add item")
        await expect(page.locator(f"{FORM} .item")).to_have_count(1)
        await page.locator(f"{FORM} .item input").first.fill("Porto")
        await press(page, "Add member")
        await page.evaluate(
            f"(() => {{ const [name, value] = [...document.querySelectorAll('{FORM} .item')].at(-1)"
            ".querySelectorAll('input'); name.value = 'bags'; value.value = '3'; })()"
        )
        await press(page, "Send")
        await page.wait_for_selector(f"{ANSWER} .status.good, {ANSWER} .error", state="attached")
        await ended(page)
        assert await texts(page, f"{ANSWER} .error") == []
    assert taken == [
        Journey(
            to='Lisboa "é"',
            day=date(2027, 3, 14),
            cabin=Cabin.FIRST,
            travellers=2,
            insured=True,
            budget=1500.5,
            home=Stop("Berlin"),
            stops=[Stop("Porto")],
            extras={"bags": 3},
            anything={"deep": [1, 12345678901234567890]},
        )
    ]


async def test_what_is_left_empty_is_left_out(browser):
    taken: list[Any] = []
    async with serving(parley.asgi(echoing(taken))) as url, opened(browser, f"{url}/docs") as page:
        await open_form(page)
        for label, value in (("to", "x"), ("day", "2027-03-14"), ("travellers", "1")):
            await fill(page, label, value)
        await fill(page, "cabin", "economy")
        await press(page, "Send")
        await ended(page)
    assert taken == [Journey("x", date(2027, 3, 14), Cabin.ECONOMY, 1, False)]


async def test_what_is_wrong_is_said_beside_its_field(browser):
    """Nested fields and list items are marked too; the first wrong field gets the focus."""
    taken: list[Any] = []
    app = parley.asgi(echoing(taken, Trip))
    async with serving(app) as url, opened(browser, f"{url}/docs") as page:
        await open_form(page)
        await fill(page, "to", "x")
        await fill(page, "cabin", "first")
        await groups(page, is_open=True)
        await labelled(page, "city").wait_for()
        await press(page, "Add item")
        await expect(page.locator(f"{FORM} .item")).to_have_count(1)
        await press(page, "Send")
        await page.wait_for_selector(f"{FORM} [aria-invalid]", state="attached")
        wrong = await page.evaluate(
            f"[...document.querySelectorAll('{FORM} .problem:not([hidden])')].map((each) => "
            "[each.parentNode.querySelector('span').textContent, each.textContent])"
        )
        named = [name for name, _ in wrong]
        assert named[:2] == ["day", "travellers"]
        assert named.count("city") == 2
        assert all("required" in words for _, words in wrong)
        about = await page.evaluate(
            f"[...document.querySelectorAll('{FORM} [aria-invalid]')].every((each) => "
            "each.matches('details') || document.getElementById("
            "each.getAttribute('aria-describedby').split(' ').at(-1)).textContent)"
        )
        assert about is True
        focused = "document.activeElement.closest('.entry')?.querySelector('span').textContent"
        assert await page.evaluate(focused) == "day"
        await fill(page, "day", "2027-03-14")
        await fill(page, "travellers", "1")
        await groups(page, is_open=False)
        await press(page, "Send")
        await ended(page)
        assert await page.locator(f"{FORM} [aria-invalid]").count() == 0
    assert len(taken) == 1


async def test_json_that_is_none_is_said_before_anything_is_sent(browser):
    async with serving(parley.asgi(echoing([]))) as url, opened(browser, f"{url}/docs") as page:
        await open_form(page)
        await fill(page, "anything", "{no")
        await press(page, "Send")
        [words] = await texts(page, f"{FORM} .problem")
        assert words.startswith("expected JSON: ")
        assert [each.url for each in await page.requests() if each.method == "POST"] == []


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


def declared(taken: list[Any]) -> Agent:
    """Return an agent that declares its skill's schema by hand."""
    params = {"skills": {"take": {"input": SCHEMA}}}
    extension = AgentExtension(uri="urn:parley:skill-schemas:v1", params=params)
    agent = Agent("Declared", extensions=[extension])

    @agent.skill
    async def take(turn: Turn) -> str:
        """Takes what comes."""
        taken.append((turn.data, turn.metadata["skill"]))
        return "taken"

    return agent


async def test_schemas_of_every_kind_have_a_form(browser):
    """References, recursive too, alternatives, null, defaults, tuples, and unknown keywords."""
    taken: list[Any] = []
    async with serving(parley.asgi(declared(taken))) as url, opened(browser, f"{url}/docs") as page:
        await open_form(page)
        await fill(page, "name", "first")
        await page.evaluate(f"document.querySelector('{FORM} fieldset details.group').open = true")
        await expect(page.locator(f"{FORM} fieldset details.group")).to_have_count(2)
        await page.locator(f"{FORM} fieldset details.group input").first.fill("second")
        await fill(page, "pay", "Card")
        await fill(page, "number", "4242")
        await fill(page, "level", "2")
        await fill(page, "1", "a")
        await fill(page, "2", "5")
        await fill(page, "maybe", "no")
        await fill(page, "odd", "[null]")
        await press(page, "Send")
        assert await page.text_content(SAID) == "taken"
        assert "A <b>chain</b>" in await texts(page, f"{FORM} .hint")
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


def asking() -> Agent:
    agent = Agent("Asking")

    @agent.skill(replies="task", examples=["Go"])
    async def plan(turn: Turn) -> str:
        """Asks twice."""
        dates = await turn.ask("When?", answer=Dates)
        note = await turn.ask("Anything else?")
        return f"{dates.first} {dates.nights} {note.text}"

    return agent


STREAM = "#SendStreamingMessage"


async def test_a_question_with_a_schema_is_answered_in_its_form(browser):
    """A wrong answer shows its error and asks again; other questions have a text box."""
    async with serving(parley.asgi(asking())) as url, opened(browser, f"{url}/docs") as page:
        await page.click(".example")
        await page.click("#SendMessage button[type=submit]")
        reply = "#SendMessage .reply"
        await page.wait_for_selector(f"{reply}", state="attached")
        await fill(page, "first", "2027-03-14", reply)
        await press(page, "Send", reply)
        await expect(page.locator(reply)).to_have_count(2)
        again = f"{reply} {'.reply'}"
        assert "required" in "".join(await texts(page, f"{again} .problem"))
        kept = await labelled(page, "first", again).input_value()
        assert kept == "2027-03-14"
        await fill(page, "nights", "3", again)
        await press(page, "Send", again)
        await expect(page.locator(reply)).to_have_count(3)
        last = f"{again} .reply"
        await fill(page, "Your answer", "window seat", last)
        await press(page, "Send", last)
        await expect(page.locator(f"{last} .answer").first).to_contain_text("COMPLETED")
        shown = "".join(await texts(page, f"{last} .answer"))
        assert "2027-03-14 3 window seat" in shown
        forms = await texts(page, f"{reply} form")
        assert len(forms) == 0 or all("Your answer" not in form for form in forms)


async def test_a_question_by_hand_has_a_form_too(browser):
    agent = Agent("By hand")
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}}

    @agent.skill(replies="task", examples=["Go"])
    async def paint(turn: Turn) -> str:
        """Asks for a colour."""
        data = {
            "schema": schema,
            "problems": [{"field": "colour", "description": "expected one of red, blue"}],
        }
        parts = (Part(text="Which?"), Part(data=data, media_type="application/schema+json"))
        answer = await turn.ask(Message(message_id="q", role=Role.AGENT, parts=parts))
        return json.dumps(answer.parts[0].data)

    async with serving(parley.asgi(agent)) as url, opened(browser, f"{url}/docs") as page:
        await page.click(".example")
        await page.click("#SendMessage button[type=submit]")
        reply = "#SendMessage .reply"
        await page.wait_for_selector(f"{reply}", state="attached")
        assert await texts(page, f"{reply} .problem") == ["expected one of red, blue"]
        await fill(page, "colour", "blue", reply)
        await press(page, "Send", reply)
        await expect(page.locator(f"{reply} .answer").first).to_contain_text("COMPLETED")
        assert '{"colour": "blue"}' in "".join(await texts(page, f"{reply} .answer .said"))


async def test_forms_fit_a_narrow_screen(browser):
    wide = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    app = parley.asgi(declared([]))
    async with serving(app) as url, opened(browser, f"{url}/docs", width=380) as page:
        await open_form(page)
        await page.locator(f"{FORM} details").evaluate_all("all => all.forEach(e => e.open = true)")
        needed, there_is = await page.evaluate(wide)
        assert needed <= there_is <= 380


async def test_the_keyboard_fills_and_sends_a_form(browser):
    taken: list[Any] = []
    agent = Agent("Adding")

    @agent.skill
    async def add(a: int, b: int) -> str:
        """Adds two numbers."""
        taken.append((a, b))
        return str(a + b)

    async with serving(parley.asgi(agent)) as url, opened(browser, f"{url}/docs") as page:
        await page.wait_for_selector(f"{FORM} > summary", state="attached")
        await page.focus(f"{FORM} > summary")
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.insert_text("4")
        await page.keyboard.press("Tab")
        await page.keyboard.insert_text("5")
        await page.keyboard.press("Control+Enter")
        assert await page.text_content(SAID) == "9"
    assert taken == [(4, 5)]
