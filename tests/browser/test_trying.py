"""A user tries the operations on an agent's page, in a real browser."""

import asyncio

import msgspec
import pytest
from playwright.async_api import expect

from parley.model.cards import APIKeySecurityScheme, SecurityScheme
from parley.model.errors import UnauthenticatedError
from parley.model.service import StreamItem
from parley.server.app import Endpoint, create_app
from parley.server.run import serving
from tests.kit.browser import opened
from tests.kit.scripted import Scripted, Standstill, card_of, chunk, reply, task

pytestmark = pytest.mark.anyio

WAIT = 10
TOKEN = "Bearer none-of-your-business"
STREAM = "#SendStreamingMessage"
EVENTS = f"{STREAM} .events > li"
STATUS = f"{STREAM} .status"
EVERYTHING = card_of(push_notifications=True, extended_agent_card=True)


class Heard:
    """A wrapper around an app that records the headers of requests."""

    def __init__(self, app):
        self.app = app
        self.headers = {}

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            self.headers[scope["path"]] = dict(scope["headers"])
        await self.app(scope, receive, send)


def app_with(card=EVERYTHING, **script):
    return create_app({"": Endpoint(Scripted(**script), card)})


async def ready(page):
    await page.wait_for_selector("#rest:not([hidden])", state="attached")


async def send(page, operation="SendMessage"):
    await page.click(f"#{operation} > summary")
    await page.click(f"#{operation} button[type=submit]")


async def test_every_operation_of_the_agent_can_be_tried(browser):
    async with serving(app_with()) as url, opened(browser, f"{url}/docs") as page:
        await ready(page)
        document = await page.evaluate("fetch('/openapi.json').then((answer) => answer.json())")
        verbs = [each for path in document["paths"].values() for each in path.values()]
        forms = await page.evaluate(
            "[...document.querySelectorAll('#operations form')]"
            ".map((each) => each.closest('details').id)"
        )
        assert sorted(forms) == sorted(each["operationId"] for each in verbs)


async def test_events_are_shown_as_they_come(browser):
    turns = [asyncio.Event(), asyncio.Event()]

    async def slowly(request, context):
        yield StreamItem(task(), 1)
        for number, turn in enumerate(turns):
            await asyncio.wait_for(turn.wait(), WAIT)
            yield StreamItem(chunk(f"piece {number}"), 2 + number)

    app = app_with(send_streaming_message=slowly)
    async with serving(app) as url, opened(browser, f"{url}/docs") as page:
        await send(page, "SendStreamingMessage")
        for number, turn in enumerate(turns, 1):
            await expect(page.locator(EVENTS)).to_have_count(number)
            assert "streaming" in await page.text_content(STATUS)
            turn.set()
        await expect(page.locator(STATUS)).to_contain_text("ended")
        assert "3 events" in await page.text_content(STATUS)
        assert await page.locator(f"{STREAM} .said").all_text_contents() == ["piece 0", "piece 1"]


@pytest.mark.parametrize("way", ["button", "key"])
async def test_a_stream_is_stopped_and_the_next_can_be_sent(browser, way):
    stream = Standstill(StreamItem(task(), 1))
    app = app_with(send_streaming_message=stream)
    async with serving(app) as url, opened(browser, f"{url}/docs") as page:
        await send(page, "SendStreamingMessage")
        await expect(page.locator(EVENTS)).to_have_count(1)
        if way == "button":
            await page.click(f"{STREAM} button.plain")
        else:
            await page.keyboard.press("Escape")
        await expect(page.locator(STATUS)).to_contain_text("Stopped")
        await asyncio.wait_for(stream.closed.wait(), WAIT)
        assert await page.is_enabled(f"{STREAM} button[type=submit]")


async def test_the_keyboard_is_enough(browser):
    async with serving(app_with()) as url, opened(browser, f"{url}/docs") as page:
        await ready(page)
        await page.focus("#SendMessage > summary")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#SendMessage[open]")
        for _ in range(30):
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement.matches('#SendMessage textarea')"):
                break
        await page.keyboard.press("Control+Enter")
        said = await page.text_content("#SendMessage .said")
        assert said == "It is noon."


async def test_a_refusal_is_shown_with_every_field_and_marks_them(browser):
    wrong = "[...document.querySelectorAll('#ListTasks [aria-invalid]')].map((each) => each.name)"
    names = ["pageSize", "statusTimestampAfter"]
    async with serving(app_with()) as url, opened(browser, f"{url}/docs") as page:
        await page.click("#ListTasks > summary")
        for name in names:
            await page.fill(f"#ListTasks [name={name}]", "many")
        await page.click("#ListTasks button[type=submit]")
        await page.wait_for_selector("#ListTasks .status.bad", state="attached")
        await page.wait_for_selector("#ListTasks .error", state="attached")
        assert await page.locator("#ListTasks .error dt").all_text_contents() == names
        assert await page.evaluate(wrong) == names
        for name in names:
            await page.fill(f"#ListTasks [name={name}]", "")
        await page.click("#ListTasks button[type=submit]")
        await page.wait_for_selector("#ListTasks .status.good", state="attached")
        assert await page.evaluate(wrong) == []


async def test_a_server_that_cannot_be_reached_is_told(browser):
    async with serving(app_with()) as url, opened(browser, f"{url}/docs") as page:
        await ready(page)
        await page.context.set_offline(True)
        await send(page)
        told = page.locator("#SendMessage .status.bad")
        await expect(told).to_contain_text("could not be reached")


@pytest.mark.parametrize("below", ["/agents/noon", "/agents/noon/acme"])
async def test_an_agent_below_a_path_and_a_tenant_are_spoken_to_where_they_are(browser, below):
    tenants = {"acme": Endpoint(Scripted(), card_of("Acme"))}
    app = create_app({"/agents/noon": Endpoint(Scripted(), card_of("Noon"), tenants=tenants)})
    async with serving(app) as url, opened(browser, f"{url}{below}/docs") as page:
        await send(page)
        await page.wait_for_selector("#SendMessage .said", state="attached")
        assert await page.title() == ("Acme" if "acme" in below else "Noon")
        asked = [each.url for each in await page.requests() if each.method == "POST"]
        assert asked == [f"{url}{below}/message:send"]


async def test_credentials_are_sent_and_kept_nowhere(browser):
    def card(interfaces):
        key = APIKeySecurityScheme(location="header", name="X-Harbour-Key")
        schemes = {"key": SecurityScheme(api_key_security_scheme=key)}
        return msgspec.structs.replace(EVERYTHING(interfaces), security_schemes=schemes)

    heard = Heard(app_with(card))
    fields = "#credentials label:nth-of-type({}) input"
    async with serving(heard) as url, opened(browser, f"{url}/docs") as page:
        await page.fill(fields.format(1), TOKEN)
        await page.fill(fields.format(2), "key-of-mine")
        await page.click("#SendMessage > summary")
        await page.click("#SendMessage .curl > summary")
        await page.click("#SendMessage button[type=submit]")
        await page.wait_for_selector("#SendMessage .said", state="attached")
        sent = heard.headers["/message:send"]
        assert sent[b"authorization"] == TOKEN.encode()
        assert sent[b"x-harbour-key"] == b"key-of-mine"

        shown = await page.evaluate("document.documentElement.outerHTML + location.href")
        assert "Authorization: …" in shown
        assert "none-of-your-business" not in shown
        assert "key-of-mine" not in shown
        kept = await page.evaluate(
            """(async () => [localStorage.length, sessionStorage.length, document.cookie,
              (await indexedDB.databases()).length, JSON.stringify(history.state)])()"""
        )
        assert kept == [0, 0, "", 0, "null"]
        await page.goto(f"{url}/docs")
        await ready(page)
        assert await page.input_value(fields.format(1)) == ""


async def test_an_agent_that_wants_to_know_who_asks_is_heard(browser):
    async def refuse(request, context):
        raise UnauthenticatedError("that token is not known")

    app = app_with(send_message=refuse)
    async with serving(app) as url, opened(browser, f"{url}/docs") as page:
        await send(page)
        told = page.locator("#SendMessage .error")
        await expect(told).to_contain_text("that token is not known")
        await expect(page.locator("#SendMessage .status")).to_contain_text("401")


async def test_what_an_agent_says_never_becomes_markup(browser):
    evil = "<img src=x onerror=\"document.title='taken'\"><b id=evil>bold</b>"

    async def say(request, context):
        return reply(evil)

    app = app_with(card_of(evil), send_message=say)
    async with serving(app) as url, opened(browser, f"{url}/docs") as page:
        await send(page)
        await page.wait_for_selector("#SendMessage .said", state="attached")
        assert await page.locator("#SendMessage .said").all_text_contents() == [evil]
        assert await page.locator("img, #evil").count() == 0
        assert await page.title() == evil


async def test_open_operations_and_long_words_fit_a_narrow_screen(browser):
    async def long(request, context):
        return reply("x" * 400)

    app = app_with(card_of("Y" * 200), send_message=long)
    wide = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    async with serving(app) as url, opened(browser, f"{url}/docs", width=380) as page:
        await send(page)
        await page.wait_for_selector("#SendMessage .said", state="attached")
        await page.evaluate(
            "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
        )
        await page.wait_for_selector("#values .members", state="attached")
        needed, there_is = await page.evaluate(wide)
        assert needed <= there_is <= 380


async def test_light_and_dark_are_the_readers_choice(browser):
    paper = "getComputedStyle(document.body).backgroundColor"
    async with serving(app_with()) as url, opened(browser, f"{url}/docs") as page:
        light = await page.evaluate(paper)
        await page.emulate_media(color_scheme="dark")
        dark = await page.evaluate(paper)
    assert light == "rgb(255, 255, 255)"
    assert dark != light
