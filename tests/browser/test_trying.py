"""What a reader does on the page of an agent: its operations are tried, in a real browser."""

import asyncio
import json

import msgspec
import pytest

from parley.model.cards import APIKeySecurityScheme, SecurityScheme
from parley.model.errors import UnauthenticatedError
from parley.model.service import StreamItem
from parley.server.app import Endpoint, create_app
from parley.server.run import serving
from tests.kit.scripted import Scripted, Standstill, card_of, chunk, reply, task

pytestmark = pytest.mark.anyio

WAIT = 10
TOKEN = "Bearer none-of-your-business"
STREAM = "#SendStreamingMessage"
EVENTS = f"document.querySelectorAll('{STREAM} .events > li').length"
STATUS = f"document.querySelector('{STREAM} .status')?.textContent"
EVERYTHING = card_of(push_notifications=True, extended_agent_card=True)


class Heard:
    """An app that remembers what was asked of the one that it is in front of."""

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
    await page.until("!document.getElementById('rest').hidden")


async def send(page, operation="SendMessage"):
    await page.click(f"#{operation} > summary")
    await page.click(f"#{operation} button[type=submit]")


async def texts(page, selector):
    found = f"[...document.querySelectorAll({json.dumps(selector)})]"
    return await page.run(f"{found}.map((each) => each.textContent)")


async def test_every_operation_of_the_agent_can_be_tried(browser):
    async with serving(app_with()) as url, browser.page(f"{url}/docs") as page:
        await ready(page)
        document = await page.run("fetch('/openapi.json').then((answer) => answer.json())")
        verbs = [each for path in document["paths"].values() for each in path.values()]
        forms = await page.run(
            "[...document.querySelectorAll('#operations form')]"
            ".map((each) => each.closest('details').id)"
        )
        assert sorted(forms) == sorted(each["operationId"] for each in verbs)
        assert page.complaints == []


async def test_events_are_shown_as_they_come(browser):
    turns = [asyncio.Event(), asyncio.Event()]

    async def slowly(request, context):
        yield StreamItem(task(), 1)
        for number, turn in enumerate(turns):
            await asyncio.wait_for(turn.wait(), WAIT)
            yield StreamItem(chunk(f"piece {number}"), 2 + number)

    app = app_with(send_streaming_message=slowly)
    async with serving(app) as url, browser.page(f"{url}/docs") as page:
        await send(page, "SendStreamingMessage")
        for number, turn in enumerate(turns, 1):
            await page.until(f"{EVENTS} === {number}")
            assert "streaming" in await page.run(STATUS)
            turn.set()
        await page.until(f"{STATUS}.includes('ended')")
        assert "3 events" in await page.run(STATUS)
        assert await texts(page, f"{STREAM} .said") == ["piece 0", "piece 1"]
        assert page.complaints == []


@pytest.mark.parametrize("way", ["button", "key"])
async def test_a_stream_is_stopped_and_the_next_can_be_sent(browser, way):
    stream = Standstill(StreamItem(task(), 1))
    app = app_with(send_streaming_message=stream)
    async with serving(app) as url, browser.page(f"{url}/docs") as page:
        await send(page, "SendStreamingMessage")
        await page.until(f"{EVENTS} === 1")
        if way == "button":
            await page.click(f"{STREAM} button.plain")
        else:
            await page.press("Escape")
        await page.until(f"{STATUS}.includes('Stopped')")
        await asyncio.wait_for(stream.closed.wait(), WAIT)
        assert await page.run(f"!document.querySelector('{STREAM} button[type=submit]').disabled")
        assert page.complaints == []


async def test_the_keyboard_is_enough(browser):
    async with serving(app_with()) as url, browser.page(f"{url}/docs") as page:
        await ready(page)
        await page.run("document.querySelector('#SendMessage > summary').focus()")
        await page.press("Enter")
        await page.until("document.querySelector('#SendMessage').open")
        for _ in range(30):
            await page.press("Tab")
            if await page.run("document.activeElement.matches('#SendMessage textarea')"):
                break
        await page.press("Enter", ctrl=True)
        said = await page.until("document.querySelector('#SendMessage .said')?.textContent")
        assert said == "It is noon."


async def test_a_refusal_is_shown_with_every_field_and_marks_them(browser):
    wrong = "[...document.querySelectorAll('#ListTasks [aria-invalid]')].map((each) => each.name)"
    names = ["pageSize", "statusTimestampAfter"]
    async with serving(app_with()) as url, browser.page(f"{url}/docs") as page:
        await page.click("#ListTasks > summary")
        for name in names:
            await page.write(f"#ListTasks [name={name}]", "many")
        await page.click("#ListTasks button[type=submit]")
        await page.until("document.querySelector('#ListTasks .status.bad')")
        await page.until("document.querySelector('#ListTasks .error')")
        assert await texts(page, "#ListTasks .error dt") == names
        assert await page.run(wrong) == names
        for name in names:
            await page.run(f"document.querySelector('#ListTasks [name={name}]').value = ''")
        await page.click("#ListTasks button[type=submit]")
        await page.until("document.querySelector('#ListTasks .status.good')")
        assert await page.run(wrong) == []


async def test_a_server_that_cannot_be_reached_is_told(browser):
    gone = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    async with serving(app_with()) as url, browser.page(f"{url}/docs") as page:
        await ready(page)
        await page.call("Network.emulateNetworkConditions", **gone)
        await send(page)
        await page.until("document.querySelector('#SendMessage .status.bad')")
        assert "could not be reached" in "".join(await texts(page, "#SendMessage .status"))


@pytest.mark.parametrize("below", ["/agents/noon", "/agents/noon/acme"])
async def test_an_agent_below_a_path_and_a_tenant_are_spoken_to_where_they_are(browser, below):
    tenants = {"acme": Endpoint(Scripted(), card_of("Acme"))}
    app = create_app({"/agents/noon": Endpoint(Scripted(), card_of("Noon"), tenants=tenants)})
    async with serving(app) as url, browser.page(f"{url}{below}/docs") as page:
        await send(page)
        await page.until("document.querySelector('#SendMessage .said')")
        assert await page.run("document.title") == ("Acme" if "acme" in below else "Noon")
        asked = [each["url"] for each in page.requests if each["method"] == "POST"]
        assert asked == [f"{url}{below}/message:send"]
        assert page.complaints == []


async def test_credentials_are_sent_and_kept_nowhere(browser):
    def card(interfaces):
        key = APIKeySecurityScheme(location="header", name="X-Harbour-Key")
        schemes = {"key": SecurityScheme(api_key_security_scheme=key)}
        return msgspec.structs.replace(EVERYTHING(interfaces), security_schemes=schemes)

    heard = Heard(app_with(card))
    fields = "#credentials label:nth-of-type({}) input"
    async with serving(heard) as url, browser.page(f"{url}/docs") as page:
        await page.write(fields.format(1), TOKEN)
        await page.write(fields.format(2), "key-of-mine")
        await page.click("#SendMessage > summary")
        await page.click("#SendMessage .curl > summary")
        await page.click("#SendMessage button[type=submit]")
        await page.until("document.querySelector('#SendMessage .said')")
        sent = heard.headers["/message:send"]
        assert sent[b"authorization"] == TOKEN.encode()
        assert sent[b"x-harbour-key"] == b"key-of-mine"

        shown = await page.run("document.documentElement.outerHTML + location.href")
        assert "Authorization: …" in shown
        assert "none-of-your-business" not in shown
        assert "key-of-mine" not in shown
        kept = await page.run(
            """(async () => [localStorage.length, sessionStorage.length, document.cookie,
              (await indexedDB.databases()).length, JSON.stringify(history.state)])()"""
        )
        assert kept == [0, 0, "", 0, "null"]
        await page.open(f"{url}/docs")
        await ready(page)
        assert await page.run(f"document.querySelector('{fields.format(1)}').value") == ""


async def test_an_agent_that_wants_to_know_who_asks_is_heard(browser):
    async def refuse(request, context):
        raise UnauthenticatedError("that token is not known")

    app = app_with(send_message=refuse)
    async with serving(app) as url, browser.page(f"{url}/docs") as page:
        await send(page)
        await page.until("document.querySelector('#SendMessage .error')")
        assert "that token is not known" in "".join(await texts(page, "#SendMessage .error p"))
        assert "401" in "".join(await texts(page, "#SendMessage .status"))


async def test_what_an_agent_says_never_becomes_markup(browser):
    evil = "<img src=x onerror=\"document.title='taken'\"><b id=evil>bold</b>"

    async def say(request, context):
        return reply(evil)

    app = app_with(card_of(evil), send_message=say)
    async with serving(app) as url, browser.page(f"{url}/docs") as page:
        await send(page)
        await page.until("document.querySelector('#SendMessage .said')")
        assert await texts(page, "#SendMessage .said") == [evil]
        assert await page.run("document.querySelectorAll('img, #evil').length") == 0
        assert await page.run("document.title") == evil
        assert page.complaints == []


async def test_open_operations_and_long_words_fit_a_narrow_screen(browser):
    async def long(request, context):
        return reply("x" * 400)

    app = app_with(card_of("Y" * 200), send_message=long)
    wide = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    async with serving(app) as url, browser.page(f"{url}/docs", width=380) as page:
        await send(page)
        await page.until("document.querySelector('#SendMessage .said')")
        await page.run(
            "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
        )
        await page.until("document.querySelector('#values .members')")
        needed, there_is = await page.run(wide)
        assert needed <= there_is <= 380


async def test_light_and_dark_are_the_readers_choice(browser):
    paper = "getComputedStyle(document.body).backgroundColor"
    async with serving(app_with()) as url, browser.page(f"{url}/docs") as page:
        light = await page.run(paper)
        await page.look(width=1280, dark=True)
        dark = await page.run(paper)
    assert light == "rgb(255, 255, 255)"
    assert dark != light
