"""Hostile cards and answers: nothing runs, nothing freezes, nothing is shown as a page."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect

from parley.model.parts import Message, Part, Role
from parley.server.app import Endpoint, create_app
from parley.server.http.responses import reply
from parley.server.run import serving
from tests.browser.agents import COMPOSER, fits, log, say
from tests.kit.browser import opened
from tests.kit.scripted import Scripted, card_of

pytestmark = pytest.mark.anyio

SCRIPT = "<script>window.taken = 1</script><img src=x onerror='window.taken = 1'>"
REVERSED = "\u202etxt.exe\u2066"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.taken=1'><script>1</script></svg>"

DEPTH = 1000
DEEP = (
    '{"type":"object","required":["inner"],"properties":{"inner":' * DEPTH
    + '{"type":"string"}'
    + "}}" * DEPTH
)
knot = {
    "type": "object",
    "properties": {name: {"$ref": "#"} for name in "abcdef"},
    "required": list("abcdef"),
}
SCHEMAS = {
    "cycle": {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
    "knot": knot,
    "deep": "a schema of this depth is written by hand",
    "wide": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(10_000)}},
    "odd": {"type": ["x", 1], "enum": {}, "properties": [], "required": 1, "anyOf": [1, None]},
    "all": {"allOf": [{"allOf": [{"$ref": "#"}] * 30}] * 30},
    "prototype": {"type": "object", "properties": {"__proto__": {"type": "string"}}},
}


class Hostile:
    """A server whose card and answers are made to do harm."""

    def __init__(self, answer: Message) -> None:
        async def say_it(request, context):
            return answer

        card = card_of(streaming=False)
        self._app = create_app({"": Endpoint(Scripted(send_message=say_it), card)})
        skills = [
            {
                "id": each,
                "name": SCRIPT,
                "description": REVERSED,
                "tags": [SCRIPT],
                "examples": [SCRIPT],
            }
            for each in SCHEMAS
        ]
        params = {"skills": {name: {"input": schema} for name, schema in SCHEMAS.items()}}
        extension = {"uri": "urn:parley:skill-schemas:v1", "params": params}
        made = {
            "name": SCRIPT + REVERSED + "N" * 5000,
            "description": SCRIPT,
            "documentationUrl": "javascript:window.taken=1",
            "provider": {"organization": "x", "url": "data:text/html,x"},
            "capabilities": {"extensions": [extension, None, 1]},
            "skills": [*skills, None, {"id": 1}],
            "supportedInterfaces": [{"url": "x", "protocolBinding": "HTTP+JSON"}],
        }
        self._card = json.dumps(made).replace(json.dumps(SCHEMAS["deep"]), DEEP).encode()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and scope["path"].endswith("/agent-card.json"):
            await reply(send, 200, self._card)
        else:
            await self._app(scope, receive, send)


MARKDOWN = f"""{SCRIPT}

[click](javascript:window.taken=1) [data](data:text/html,x) [web](https://example.com)
![far](https://example.com/x.png) ![inline](data:image/svg+xml;base64,AAAA)

<iframe src="https://example.com"></iframe> <a href="javascript:1">raw</a> &lt;b&gt;
"""


def answered(*parts: Part) -> Message:
    return Message(message_id="r", context_id="c", role=Role.AGENT, parts=parts)


async def nothing_ran(page) -> None:
    assert await page.evaluate("window.taken") is None
    found = await page.evaluate(
        "[...document.querySelectorAll('iframe, object, embed, svg, base, form[action], "
        "[onerror], [onload], [srcdoc]')].length"
    )
    assert found == 0
    links = await page.locator("a").evaluate_all("all => all.map((each) => each.protocol)")
    assert set(links) <= {"http:", "https:", "mailto:", "blob:"}
    sources = await page.locator("img").evaluate_all("all => all.map((each) => each.src)")
    assert all(each.startswith(("blob:", "data:")) for each in sources)


async def test_nothing_of_an_answer_runs(browser):
    files = (
        Part(raw=SVG, media_type="image/svg+xml", filename=f"../{REVERSED}.svg"),
        Part(raw=SCRIPT.encode(), media_type="text/html", filename="x.html"),
        Part(raw=b"no picture", media_type="image/png", filename="x.png"),
        Part(url="javascript:window.taken=1", media_type="image/png"),
        Part(url="https://example.com/x.svg", media_type="image/svg+xml"),
        Part(
            data={SCRIPT: SCRIPT, "__proto__": {"taken": 1}, "x": json.loads("[" * 90 + "]" * 90)}
        ),
    )
    app = Hostile(answered(Part(text=MARKDOWN), *files))
    async with serving(app) as url, opened(browser, url, width=390) as page:
        await say(page, SCRIPT)
        answer = log(page).locator(".theirs")
        await expect(answer).to_contain_text("<script>window.taken = 1</script>")
        await expect(answer).to_contain_text("<iframe")
        await nothing_ran(page)
        names = await answer.locator("a[download]").evaluate_all(
            "all => all.map((each) => each.download)"
        )
        assert names == [".._txt.exe.svg", "x.html", "x.png"]
        types = await answer.locator("a[download]").count()
        assert types == 3
        assert await answer.locator("a", has_text="click").count() == 0
        assert await fits(page)
        assert "\u202e" not in await page.text_content("h1")
        assert [each.url for each in await page.requests() if "example.com" in each.url] == []


@pytest.mark.parametrize("name", SCHEMAS)
async def test_no_schema_freezes_its_form(browser, name):
    async with serving(Hostile(answered(Part(text="ok")))) as url, opened(browser, url) as page:
        await page.wait_for_selector(COMPOSER)
        await page.locator(".options select").select_option(name)
        form = page.locator(".composer form")
        await form.get_by_role("button", name="Send").wait_for()
        assert await page.evaluate("document.querySelectorAll('*').length") < 8000
        await form.get_by_role("button", name="JSON", exact=True).click()
        await form.locator("textarea").fill('{"free": [12345678901234567890]}')
        await form.get_by_role("button", name="Send").click()
        await expect(log(page).locator(".theirs")).to_contain_text("ok")
        [sent] = [each for each in await page.requests() if each.method == "POST"]
        assert '"data":{"free": [12345678901234567890]}' in sent.post_data
        await nothing_ran(page)


HARD = {
    "stars": "*a " * 50_000,
    "brackets": "[" * 50_000,
    "quotes": ">" * 50_000,
    "backticks": "`a``" * 30_000,
    "underscores": "_a" * 50_000,
    "nested links": "[a](" * 30_000,
    "table": "|a" * 30_000 + "\n" + "|-" * 30_000,
    "lines": "- a\n" * 40_000,
    "long": "word " * 400_000,
    "lines of emphasis": "_a\n" * 30_000,
    "numbers": "1. " * 30_000,
}


@pytest.mark.parametrize("name", HARD)
async def test_no_text_freezes_the_page(browser, name):
    app = Hostile(answered(Part(text=HARD[name])))
    async with serving(app) as url, opened(browser, url) as page:
        await say(page, "Go")
        await log(page).locator(".theirs article > *").nth(1).wait_for()
        assert await page.evaluate("document.querySelectorAll('*').length") < 20_000
        await page.fill(COMPOSER, "still here", timeout=5000)
