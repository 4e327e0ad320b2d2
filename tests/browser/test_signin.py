"""Signing in on the page with what the card asks for; secrets stay in the tab."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from playwright.async_api import expect
from starlette.middleware.cors import CORSMiddleware

import parley
from parley import Agent, Settings, Turn
from parley.model.service import Caller
from parley.security import ApiKey, AuthorizationCodeOAuthFlow, Basic, Bearer, OAuth2, OpenIdConnect
from parley.server.run import serving
from parley.testing import Issuer
from tests.browser.agents import COMPOSER, log, say
from tests.kit.browser import opened

pytestmark = pytest.mark.anyio

KNOWN = {"a-secret": Caller(id="ada")}
HASHED = {hashlib.sha256(key.encode()).hexdigest(): caller for key, caller in KNOWN.items()}


def guarded(security) -> Agent:
    agent = Agent("Vault", security=security)

    @agent.skill
    async def who(turn: Turn) -> str:
        """Says who asks."""
        return f"You are {turn.caller.id}"

    return agent


async def check(page, url, *, asks_itself=True):
    """Check that the caller is known, also after a reload, and that no secret is kept for ever."""
    await expect(page.get_by_role("heading", name="Signed in")).to_be_visible()
    await say(page, "Who am I?")
    await expect(log(page).locator(".theirs")).to_contain_text("You are ada")
    await page.reload()
    await say(page, "And now?")
    await expect(log(page).locator(".theirs")).to_have_count(2)
    kept = await page.evaluate("[JSON.stringify(localStorage), document.cookie, location.href]")
    assert kept[1:] == ["", f"{url}/"]
    assert "secret" not in kept[0]
    await page.get_by_role("button", name="Sign out").click()
    if asks_itself:
        await say(page, "And now?")
        await expect(page.get_by_text("The agent does not know you")).to_be_visible()
        assert await page.input_value(COMPOSER) == "And now?"


@pytest.mark.parametrize("place", ["header", "query"])
async def test_an_api_key_is_asked_for_where_the_card_says(browser, place):
    app = parley.asgi(
        guarded(
            ApiKey(
                place,
                "X-Harbour-Key",
                keys={hashlib.sha256(b"a-secret").hexdigest(): KNOWN["a-secret"]},
            )
        )
    )
    async with serving(app) as url, opened(browser, url) as page:
        await page.get_by_label("API key (X-Harbour-Key)").fill("a-secret")
        await page.keyboard.press("Enter")
        await check(page, url)


async def test_a_token_that_is_wrong_is_asked_for_again(browser):
    async with (
        serving(parley.asgi(guarded(Bearer(KNOWN.get)))) as url,
        opened(browser, url) as page,
    ):
        await page.get_by_label("Token").fill("wrong")
        await page.keyboard.press("Enter")
        await say(page, "Who am I?")
        await expect(page.get_by_text("The agent does not know you")).to_be_visible()
        await page.get_by_label("Token").fill("a-secret")
        await page.keyboard.press("Enter")
        await page.fill(COMPOSER, "")
        await check(page, url)


async def test_a_user_with_a_password_signs_in(browser):
    async def known(user: str, password: str) -> Caller | None:
        return Caller(id=user) if password == "sécret" else None

    async with serving(parley.asgi(guarded(Basic(known)))) as url, opened(browser, url) as page:
        await page.get_by_label("User name").fill("ada")
        await page.get_by_label("Password").fill("wrong")
        await page.keyboard.press("Enter")
        await say(page, "Who am I?")
        await expect(page.get_by_text("The agent does not know you")).to_be_visible()
        await page.fill(COMPOSER, "")
        await page.get_by_label("User name").fill("ada")
        await page.get_by_label("Password").fill("sécret")
        await page.keyboard.press("Enter")
        await check(page, url, asks_itself=False)  # the browser itself asks for passwords


@pytest.mark.parametrize("kind", ["OpenID Connect", "OAuth 2.0"])
async def test_an_issuer_sends_the_browser_back_with_a_login(browser, kind):
    async with Issuer(audience="vault") as issuer:
        issuer.app.add_middleware(CORSMiddleware, allow_origins=["*"])
        if kind == "OpenID Connect":
            security = OpenIdConnect(issuer.url, audience="vault")
        else:
            flow = AuthorizationCodeOAuthFlow(
                authorization_url=f"{issuer.url}/authorize",
                token_url=f"{issuer.url}/token",
                scopes={},
            )
            security = OAuth2(flow, issuer=issuer.url, audience="vault")
        async with serving(parley.asgi(guarded(security))) as url, opened(browser, url) as page:
            answer = await page.context.request.get(url, headers={"Accept": "text/html"})
            assert f"connect-src 'self' {issuer.url};" in answer.headers["content-security-policy"]
            await page.get_by_label("Client id").fill("app")
            await page.keyboard.press("Enter")
            await check(page, url)
            assert issuer.requests["token"] == 1
            assert await page.get_by_label("Client id").input_value() == "app"


async def test_an_answer_of_no_login_of_this_tab_is_refused(browser):
    async with Issuer(audience="vault") as issuer:
        issuer.app.add_middleware(CORSMiddleware, allow_origins=["*"])
        issuer.fail("authorize", status=400, body=b"no")
        security = OpenIdConnect(issuer.url, audience="vault")
        theirs = "/?code=theirs&state=theirs"
        app = parley.asgi(guarded(security))
        async with serving(app) as url, opened(browser, url + theirs) as page:
            await expect(page.get_by_text("Signing in failed")).to_be_visible()
            assert page.url == f"{url}/"
            await page.get_by_label("Client id").fill("app")
            async with page.expect_navigation(url=f"{issuer.url}/**"):
                await page.keyboard.press("Enter")
            await page.goto(url + theirs)  # a login has begun, but not this one
            await expect(page.get_by_text("Signing in failed")).to_be_visible()
            assert issuer.requests["token"] == 0


@pytest.mark.parametrize("claims", [{"nonce": "theirs"}, {"aud": "theirs"}, {"iss": "theirs"}])
async def test_an_id_token_of_another_login_is_refused(browser, claims):
    async with Issuer(audience="vault") as issuer:
        issuer.app.add_middleware(CORSMiddleware, allow_origins=["*"])
        app = parley.asgi(guarded(OpenIdConnect(issuer.url, audience="vault")))
        async with serving(app) as url, opened(browser, url) as page:

            async def changed(route):
                answer = await route.fetch()
                found = await answer.json()
                header, payload, signature = found["id_token"].split(".")
                told = json.loads(base64.urlsafe_b64decode(payload + "==")) | claims
                payload = base64.urlsafe_b64encode(json.dumps(told).encode()).decode()
                found["id_token"] = ".".join((header, payload.rstrip("="), signature))
                await route.fulfill(response=answer, json=found)

            await page.route(f"{issuer.url}/token", changed)
            await page.get_by_label("Client id").fill("app")
            await page.keyboard.press("Enter")
            await expect(page.get_by_text("Signing in failed: the id token")).to_be_visible()
            assert issuer.requests["token"] == 1


async def test_a_card_for_callers_is_read_after_signing_in(browser):
    settings = Settings(restrict={"card": "authenticated"})
    app = parley.asgi(guarded(Bearer(KNOWN.get)), settings=settings)
    async with serving(app) as url, opened(browser, url) as page:
        await page.get_by_label("Token").fill("a-secret")
        await page.keyboard.press("Enter")
        await say(page, "Who am I?")
        await expect(log(page).locator(".theirs")).to_contain_text("You are ada")
        await page.reload()
        await expect(log(page).locator(".theirs")).to_contain_text("You are ada")
