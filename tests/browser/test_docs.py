"""The page of an agent at ``/docs``, in a real browser."""

from __future__ import annotations

import pytest

import parley
from parley import Agent, Turn, asgi
from parley.compose import part, sequence
from parley.server.run import serving
from tests.kit.browser import opened

pytestmark = pytest.mark.anyio


def agent() -> Agent:
    echo = Agent("Echo", description="Says it again")

    @echo.skill(examples=["Say this again"])
    async def again(turn: Turn) -> str:
        """Says it again."""
        return turn.text

    return echo


@pytest.mark.parametrize("path", ["", "/below"])
async def test_a_message_is_sent_from_the_page_and_its_reply_shown(browser, path):
    app = asgi({path or "/": agent()})
    async with serving(app) as url, opened(browser, f"{url}{path}/docs") as page:
        await page.click(".example")
        await page.wait_for_selector("#SendMessage[open]")
        await page.click("#SendMessage button[type=submit]")
        said = await page.text_content("#SendMessage .answer .said")
        assert said == "Say this again"
        # The page sends requests to its own server only.
        assert {each.url.startswith(url) for each in await page.requests()} == {True}


async def test_a_refusal_is_shown_with_the_field_that_is_wrong(browser):
    async with serving(parley.asgi(agent())) as url, opened(browser, f"{url}/docs") as page:
        await page.click("#ListTasks summary")
        await page.fill("#ListTasks input[name=pageSize]", "9999")
        await page.click("#ListTasks button[type=submit]")
        shown = await page.text_content("#ListTasks .error")
        assert "INVALID_PARAMS" in shown
        assert "pageSize" in shown


@pytest.mark.parametrize("dark", [False, True])
async def test_nothing_overflows_a_narrow_screen(browser, dark):
    async with (
        serving(parley.asgi(agent())) as url,
        opened(browser, f"{url}/docs", width=380, dark=dark) as page,
    ):
        await page.wait_for_selector("#rest:not([hidden])", state="attached")
        assert await page.evaluate("document.documentElement.scrollWidth <= 380")


async def test_the_picture_of_a_composition_is_shown_and_runs_nothing(browser):
    async def shout(text: str) -> str:
        return text.upper()

    hostile = part(shout, name="<script>alert(1)</script>")
    made = sequence(hostile, agent(), name="Line")
    async with serving(parley.asgi(made)) as url, opened(browser, f"{url}/docs", width=380) as page:
        width = await page.locator(".picture img").evaluate(
            "image => image.decode().then(() => image.naturalWidth)"
        )
        assert width > 380
        assert await page.evaluate("document.documentElement.scrollWidth <= 380")
        assert await page.text_content("#composition pre") == made.mermaid()
