"""The page of an agent, and of a server of several, in a real browser."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from datetime import date

import pytest
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.routing import Mount

import parley
from parley import Agent, Settings, Turn
from parley.compose import part, sequence
from parley.model.service import Caller
from parley.security import Bearer
from parley.server.run import serving
from tests.browser.agents import COMPOSER, PNG, Harbour, Stay, completed, fits, log, say
from tests.kit.browser import opened
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio


async def test_what_the_agent_is_and_does_is_shown(browser):
    async with serving(parley.asgi(Harbour().agent)) as url, opened(browser, url) as page:
        assert await page.text_content("h1") == "Harbour"
        assert await page.title() == "Harbour"
        await expect(page.locator("header")).to_contain_text("Knows the sea")
        await expect(page.locator("header")).to_contain_text("version 2.1")
        await expect(page.locator(".skills > ul > li")).to_have_count(5)
        await page.get_by_role("button", name="When is high water?").click()
        assert await page.input_value(COMPOSER) == "When is high water?"
        assert await page.evaluate("document.activeElement.className") == "message"
        # The page sends requests to its own server only.
        assert {each.url.startswith(url) for each in await page.requests()} == {True}


@pytest.mark.parametrize("path", ["", "/below/it", "/acme"])
async def test_a_message_is_answered_with_markdown_where_the_agent_is(browser, path):
    agents = {path.removesuffix("/acme") or "/": Harbour().agent}
    tenants = {"acme": Harbour("Acme").agent} if "acme" in path else None
    app = parley.asgi(agents, tenants=tenants)
    async with serving(app) as url, opened(browser, url + path) as page:
        await say(page, "Hello", "tides")
        answer = log(page).locator(".markdown")
        await expect(answer.locator("h3")).to_have_text("Tides")
        assert await answer.locator("td").all_text_contents() == ["Brest", "6.9"]
        link = answer.get_by_role("link", name="a table")
        assert await link.get_attribute("rel") == "noopener noreferrer"
        [sent] = [each.url for each in await page.requests() if each.method == "POST"]
        assert sent == f"{url}{path}/message:stream"


async def test_an_app_that_is_mounted_has_its_page_there(browser):
    app = parley.asgi(Harbour().agent)
    outer = Starlette(routes=[Mount("/deep/agents", app)], lifespan=app.lifespan)
    async with under_uvicorn(outer) as url, opened(browser, f"{url}/deep/agents") as page:
        await say(page, "Hello", "tides")
        await expect(log(page).locator(".markdown h3")).to_have_text("Tides")
        asked = {each.url.startswith(f"{url}/deep/agents") for each in await page.requests()}
        assert asked == {True}


async def test_a_stream_grows_and_its_timeline_with_it(browser):
    harbour = Harbour()
    async with serving(parley.asgi(harbour.agent)) as url, opened(browser, url) as page:
        await say(page, "Write", "report")
        await expect(log(page).locator(".theirs")).to_contain_text("one")
        events = page.locator(".events > li")
        await expect(events.filter(has_text="artifactUpdate")).to_have_count(1)
        assert await page.get_by_role("button", name="Send").is_disabled()
        harbour.gate.set()
        await completed(page)
        await expect(log(page).locator(".theirs .markdown")).to_have_text("one two three")
        numbers = await page.locator(".events .number").all_text_contents()
        assert numbers == [str(each) for each in range(1, len(numbers) + 1)]
        await expect(page.locator(".chat [role=status]").first).to_contain_text("one two three")


async def test_a_task_is_cancelled_with_the_keyboard(browser):
    async with serving(parley.asgi(Harbour().agent)) as url, opened(browser, url) as page:
        await say(page, "Write", "report")
        await expect(log(page).locator(".theirs")).to_contain_text("one")
        await page.press(COMPOSER, "Escape")
        assert await page.evaluate("document.activeElement.textContent") == "Cancel"
        await page.keyboard.press("Enter")
        await expect(log(page).locator("[data-state=TASK_STATE_CANCELED]")).to_be_visible()
        await expect(page.get_by_role("button", name="Send")).to_be_enabled()


async def test_questions_have_forms_and_get_the_focus(browser):
    """A wrong answer shows its error and asks again; a question in prose has the text box."""
    async with serving(parley.asgi(Harbour().agent)) as url, opened(browser, url) as page:
        await say(page, "Plan", "plan")
        form = page.locator(".question")
        focused = "document.activeElement.closest('.entry')?.querySelector('bdi').textContent"
        await expect(form.get_by_label("arrival")).to_be_focused()
        await form.get_by_label("arrival").fill("2027-03-14")
        await form.get_by_role("button", name="Answer").click()
        await expect(form.locator(".wrong")).to_contain_text("required")
        await expect(form.get_by_label("nights")).to_be_focused()
        assert await page.evaluate(focused) == "nights"
        assert await form.get_by_label("arrival").input_value() == "2027-03-14"
        await form.get_by_label("nights").fill("3")
        await page.keyboard.press("Control+Enter")
        await expect(log(page)).to_contain_text("Anything else?")
        await expect(page.locator(COMPOSER)).to_be_focused()
        await page.keyboard.type("window seat")
        await page.keyboard.press("Enter")
        await completed(page)
        await expect(log(page)).to_contain_text("2027-03-14 3 window seat")


async def test_files_are_sent_and_shown_and_nothing_in_them_runs(browser):
    harbour = Harbour()
    async with serving(parley.asgi(harbour.agent)) as url, opened(browser, url) as page:
        await page.wait_for_selector(COMPOSER)
        picture = {"name": "mine.png", "mimeType": "image/png", "buffer": PNG}
        await page.set_input_files("input[type=file]", [picture])
        await expect(page.locator(".attached")).to_contain_text("mine.png")
        await say(page, "Here", "files")
        await completed(page)
        assert harbour.taken == [("mine.png", PNG)]
        pictures = log(page).locator("img")
        widths = await pictures.evaluate_all(
            "all => Promise.all(all.map((each) => each.decode().then(() => each.naturalWidth)))"
        )
        assert widths == [1, 1]
        async with page.expect_download() as found:
            await log(page).get_by_role("link", name="Download a.html").click()
        download = await found.value
        assert download.suggested_filename == "a.html"
        assert await log(page).locator("th").all_text_contents() == ["port", "tide"]
        far = log(page).get_by_role("link", name="far.png")
        assert await far.get_attribute("href") == "https://example.com/far.png"
        assert "taken" not in await page.evaluate("Object.keys(window)")


@pytest.mark.parametrize("public", [None, "https://agents.example.com/all"])
async def test_a_large_file_goes_to_the_server_of_the_agent(browser, public):
    """Also where the addresses on the card are not the page's own, as in a tunnel."""
    names = []
    agent = Agent("Reads")

    @agent.skill
    async def read(turn: Turn) -> str:
        """Reads a file."""
        names.extend((each.filename, each.url) for each in turn.message.parts if each.url)
        return "read"

    app = parley.asgi(agent, settings=Settings(inline_file_bytes=100), url=public)
    async with serving(app) as url, opened(browser, url) as page:
        await page.wait_for_selector(COMPOSER)
        file = {"name": "big.bin", "mimeType": "application/x-y", "buffer": bytes(5000)}
        await page.set_input_files("input[type=file]", [file])
        await say(page, "Read it")
        await expect(log(page).locator(".theirs")).to_contain_text("read")
        assert [name for name, _ in names] == ["big.bin"]


async def test_exchanges_are_copied_without_secrets(browser):
    security = Bearer({"very-secret": Caller(id="ada")}.get)
    agent = Agent("Copies", security=security)

    @agent.skill
    async def hello(turn: Turn) -> str:
        """Says hello."""
        return "hello"

    permissions = ["clipboard-read", "clipboard-write"]
    async with (
        serving(parley.asgi(agent)) as url,
        opened(browser, url, permissions=permissions) as page,
    ):
        await page.get_by_label("Token").fill("very-secret")
        await page.get_by_role("button", name="Sign in").click()
        await say(page, "it's me", "hello")
        await expect(log(page).locator(".theirs")).to_contain_text("hello")
        await page.get_by_text("Copy this exchange").click()
        written = {}
        for way in ("curl", "Python", "Command"):
            await page.get_by_role("button", name=way, exact=True).click()
            await page.get_by_role("button", name="Copy", exact=True).click()
            await expect(page.get_by_text("Copied")).to_be_visible()
            written[way] = await page.evaluate("navigator.clipboard.readText()")
    assert "very-secret" not in "".join(written.values())
    assert f"'{url}/message:stream'" in written["curl"]
    assert "it'\\''s me" in written["curl"]
    assert f'parley.connect("{url}", bearer="YOUR-TOKEN")' in written["Python"]
    compile(written["Python"], "copied", "exec")
    assert f"parley send --stream -a '{url}' --bearer YOUR-TOKEN" in written["Command"]
    assert "--skill 'hello'" in written["Command"]


async def test_several_agents_are_listed_with_their_state(browser):
    closed = Agent("Vault", security=Bearer({}.get))

    @closed.skill
    async def open_it(turn: Turn) -> str:
        """Opens."""
        return "no"

    app = parley.asgi({"/sea": Harbour().agent, "/deep/vault": closed})

    async def failing(scope, receive, send):
        if scope["type"] == "http" and scope["path"] == "/deep/vault/.well-known/agent-card.json":
            scope = {**scope, "path": "/no/such"}
        await app(scope, receive, send)

    async with serving(app) as url, opened(browser, url) as page:
        states = page.locator("[data-agent-state]")
        await expect(states.nth(0)).to_have_text("answers")
        await expect(states.nth(1)).to_have_text("needs sign-in")
        await page.get_by_role("link", name="Harbour").click()
        await page.wait_for_selector(COMPOSER)
        assert page.url == f"{url}/sea"
    beside = parley.asgi({"/": Harbour("Pier").agent, "/sea": Harbour().agent})
    async with serving(beside) as url, opened(browser, url) as page:
        await expect(page.locator("h1")).to_have_text("Pier")
        await expect(page.locator(".others [data-agent-state=answers]")).to_be_visible()
        await page.get_by_role("link", name="Harbour").click()
        await expect(page.locator("h1")).to_have_text("Harbour")
    async with serving(failing) as url, opened(browser, url) as page:
        await expect(page.locator("[data-agent-state=fails]")).to_contain_text("nothing is at")


async def test_the_page_goes_with_its_setting(browser):
    app = parley.asgi(Harbour().agent, settings=Settings(page=False))
    async with serving(app) as url, opened(browser, url) as page:
        assert "send it JSON-RPC" in await page.text_content("body")
    app = parley.asgi(Harbour().agent, settings=Settings(restrict={"page": ["192.0.2.0/24"]}))
    async with serving(app) as url, opened(browser, url) as page:
        assert "send it JSON-RPC" in await page.text_content("body")


async def test_the_former_address_leads_to_the_page(browser):
    app = parley.asgi({"/x": Harbour().agent, "/y": Harbour("Pier").agent})
    async with serving(app) as url, opened(browser, f"{url}/x/docs") as page:
        assert page.url == f"{url}/x/"
        assert await page.text_content("h1") == "Harbour"


async def test_the_picture_of_a_composition_is_shown_and_runs_nothing(browser):
    async def shout(text: str) -> str:
        return text.upper()

    hostile = part(shout, name="<script>alert(1)</script>")
    made = sequence(hostile, Harbour().agent, name="Line")
    async with serving(parley.asgi(made)) as url, opened(browser, url) as page:
        width = await page.locator(".composition img").evaluate(
            "image => image.decode().then(() => image.naturalWidth)"
        )
        assert width > 100
        assert await fits(page)


async def test_a_form_of_a_skill_is_sent(browser):
    harbour = Harbour()
    async with serving(parley.asgi(harbour.agent)) as url, opened(browser, url) as page:
        book = page.locator(".skills > ul > li").filter(has_text="Books a stay")
        await book.get_by_role("button", name="Fill in the form").click()
        form = page.locator(".composer form")
        await expect(form.get_by_label("arrival")).to_be_focused()
        await form.get_by_role("button", name="Send").click()
        await expect(form.locator(".wrong").first).to_contain_text("required")
        await form.get_by_label("arrival").fill("2027-03-14")
        await form.get_by_label("nights").fill("2")
        await form.get_by_label("room").select_option(label="double")
        await form.get_by_role("button", name="Send").click()
        await completed(page)
    assert harbour.taken == [Stay(date(2027, 3, 14), 2, "double")]


async def test_a_credential_that_a_task_needs_goes_to_its_address_alone(browser):
    agent = Agent("Mail")

    @agent.skill(replies="task")
    async def count(turn: Turn) -> str:
        """Counts what is unread."""
        credential = await turn.require_auth("I need to read your mail.", scopes="mail.read")
        return f"3 unread with {len(credential.headers)} header"

    async with serving(parley.asgi(agent)) as url, opened(browser, url) as page:
        await say(page, "How many?")
        await page.get_by_label("Credential").fill("very-secret")
        await page.get_by_role("button", name="Send the credential").click()
        await completed(page)
        await expect(log(page)).to_contain_text("3 unread with 1 header")
        sent = [each for each in await page.requests() if "very-secret" in (each.post_data or "")]
        assert ["/callbacks/authorize/" in each.url for each in sent] == [True]
        kept = await page.evaluate("JSON.stringify([sessionStorage, localStorage])")
        assert "very-secret" not in kept


async def test_what_is_copied_does_the_same_again(browser, tmp_path):
    harbour = Harbour()
    stay = Stay(date(2027, 3, 14), 2)
    async with serving(parley.asgi(harbour.agent)) as url, opened(browser, url) as page:
        await page.get_by_role("button", name="Fill in the form").first.click()
        form = page.locator(".composer form")
        await form.get_by_label("arrival").fill("2027-03-14")
        await form.get_by_label("nights").fill("2")
        await form.get_by_role("button", name="Send").click()
        await completed(page)
        await page.get_by_text("Copy this exchange").click()
        for count, way in enumerate(("curl", "Python", "Command"), 2):
            await page.get_by_role("button", name=way, exact=True).click()
            text = await page.locator(".copy pre").inner_text()
            words = [sys.executable, "-c", text]
            if way != "Python":
                text = text.replace("parley send", f"{sys.executable} -m parley.cli send")
                words = ["bash", "-c", text]
            run = await asyncio.create_subprocess_exec(
                *words, stdout=PIPE, stderr=PIPE, env={**os.environ, "HOME": str(tmp_path)}
            )
            output, errors = await asyncio.wait_for(run.communicate(), 30)
            assert b"Booked 2 nights." in output, errors.decode()
            assert harbour.taken == [stay] * count
