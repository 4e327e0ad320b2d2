"""How the page looks and is used: keyboard, phones, themes, languages, assistive technology."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

import parley
from parley import Agent
from parley.security import ApiKey
from parley.server.run import serving
from tests.browser.agents import COMPOSER, LOG, Harbour, completed, fits, log, say
from tests.house.sizes import ROOT
from tests.kit.browser import opened
from tests.peers.environments import NotMade, packages_of

pytestmark = pytest.mark.anyio

PAPER = "getComputedStyle(document.body).backgroundColor"


async def test_the_keyboard_is_enough(browser):
    async with serving(parley.asgi(Harbour().agent)) as url, opened(browser, url) as page:
        await page.wait_for_selector(COMPOSER)
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.keyboard.press("Enter")
        await reach(page, "document.activeElement.textContent === 'Fill in the form'")
        await page.keyboard.press("Enter")
        await expect(page.locator(".composer").get_by_label("arrival")).to_be_focused()
        await page.keyboard.type("03142027")
        await reach(page, "document.activeElement.matches('[inputmode]')")
        await page.keyboard.type("2")
        await page.keyboard.press("Control+Enter")
        await completed(page)
        await expect(log(page)).to_contain_text("Booked 2 nights.")
        await reach(page, "document.activeElement.matches('.copy > summary')", back=True)
        await page.keyboard.press("Enter")
        await expect(page.locator(".copy pre")).to_contain_text("curl -N")


async def reach(page, condition: str, *, back: bool = False) -> None:
    """Press Tab until the focus is where it should be, and can be seen there."""
    for _ in range(60):
        await page.keyboard.press("Shift+Tab" if back else "Tab")
        if await page.evaluate(condition):
            outline = "getComputedStyle(document.activeElement).outlineStyle"
            assert await page.evaluate(outline) != "none"
            return
    raise AssertionError(f"Tab leads to no element with {condition}")


async def test_shift_enter_begins_a_line(browser):
    async with serving(parley.asgi(Harbour().agent)) as url, opened(browser, url) as page:
        await page.wait_for_selector(COMPOSER)
        await page.fill(COMPOSER, "one")
        await page.press(COMPOSER, "Shift+Enter")
        await page.keyboard.type("two")
        assert await page.input_value(COMPOSER) == "one\ntwo"
        assert await page.locator(f"{LOG} li").count() == 0


async def test_a_phone_shows_one_view_at_a_time_and_nothing_overflows(browser):
    harbour = Harbour("H" * 100)
    app = parley.asgi(harbour.agent)
    async with serving(app) as url, opened(browser, url, width=390) as page:
        await say(page, "x" * 300, "files")
        await completed(page)
        for view, selector in (("Skills", ".skills"), ("Timeline", ".timeline"), ("Chat", ".chat")):
            await page.get_by_role("button", name=view, exact=True).click()
            await expect(page.locator(selector)).to_be_visible()
            assert await fits(page)
        await page.locator(".options select").select_option("book")
        await expect(page.locator(".composer").get_by_label("arrival")).to_be_visible()
        await page.get_by_text("Copy this exchange").click()
        assert await fits(page)


async def test_light_and_dark_are_the_systems_or_the_readers_choice(browser):
    async with serving(parley.asgi(Harbour().agent)) as url, opened(browser, url) as page:
        await page.wait_for_selector(COMPOSER)
        light = await page.evaluate(PAPER)
        await page.emulate_media(color_scheme="dark")
        dark = await page.evaluate(PAPER)
        assert light == "rgb(255, 255, 255)" != dark
        await page.locator(".choices select").nth(1).select_option("light")
        assert await page.evaluate(PAPER) == light
        await page.reload()
        await page.wait_for_selector(COMPOSER)
        assert await page.evaluate(PAPER) == light


async def test_the_page_speaks_the_browsers_language_and_the_chosen(browser):
    app = parley.asgi(Harbour().agent)
    async with serving(app) as url, opened(browser, url, locale="zh-CN") as page:
        await expect(page.locator("button[type=submit]")).to_have_text("发送")
        assert await page.evaluate("document.documentElement.lang") == "zh"
        await page.locator(".choices select").first.select_option("en")
        await expect(page.locator("button[type=submit]")).to_have_text("Send")
        await page.reload()
        await expect(page.locator("button[type=submit]")).to_have_text("Send")
        assert await page.evaluate("document.documentElement.lang") == "en"


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, which checks pages for assistive technology."""
    try:
        _, home = packages_of(ROOT / "web")
    except NotMade as error:
        pytest.skip(str(error))
    return (home / "node_modules/axe-core/axe.min.js").read_text("utf-8")


async def violations(page, axe: str) -> list[str]:
    await page.evaluate(axe)
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = await page.evaluate(
        "(tags) => axe.run({runOnly: tags}).then(({violations}) => violations.map((each) => "
        "each.id + ': ' + each.nodes.map((node) => node.html.slice(0, 150)).join(' | ')))",
        tags,
    )
    return list(found)


@pytest.mark.peer
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_assistive_technology_finds_its_way(browser, axe, dark, width):
    closed = Agent("Closed", security=ApiKey("header", "X-Key", keys={}.get))

    @closed.skill
    async def nothing(text: str) -> str:
        """Does nothing."""
        return text

    harbour = Harbour()
    app = parley.asgi({"/sea": harbour.agent, "/closed": closed})
    options = {"width": width, "dark": dark, "bypass_csp": True}
    async with serving(app) as url, opened(browser, url, **options) as page:
        await expect(page.locator("[data-agent-state=signIn]")).to_be_visible()
        assert await violations(page, axe) == []
        await page.goto(f"{url}/closed")
        await page.get_by_label("API key (X-Key)").wait_for()
        assert await violations(page, axe) == []
        await page.goto(f"{url}/sea")
        await say(page, "Hello", "tides")
        await log(page).locator("table").wait_for()
        await say(page, "Send", "files")
        await completed(page)
        await page.get_by_text("Copy this exchange").first.click()
        assert await violations(page, axe) == []
        await say(page, "Plan", "plan")
        await page.locator(".question").get_by_role("button", name="Answer").click()
        await page.locator(".question .wrong").first.wait_for()
        assert await violations(page, axe) == []
        if width < 1000:
            for view in ("Skills", "Timeline"):
                await page.get_by_role("button", name=view, exact=True).click()
                assert await violations(page, axe) == []
