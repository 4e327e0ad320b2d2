"""OAuth flows: how each flow gets a token, and the unsafe requests that it rejects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import aiohttp
import pytest

import parley
from parley.client import auth, authorizing
from parley.client.auth.login import RedirectListener
from parley.client.bindings.http import HttpTransport
from parley.client.origin import Origin
from parley.testing import Issuer
from tests.client.auth.declared import Tokens, bank, oauth, openid, served
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer(audience="bank", device_interval=0) as issuer:
        yield issuer


class Browser:
    """A browser that follows redirects; ``change`` alters the redirect back to the client."""

    def __init__(self, change: Any = None, *, opens: bool = True) -> None:
        self.pages: list[str] = []
        self.answers: list[int] = []
        self._change = change
        self._opens = opens

    def __call__(self, url: str) -> bool:
        self.pages.append(url)
        if self._opens:
            asyncio.run(self._visit(url))
        return self._opens

    async def _visit(self, url: str) -> None:
        async with aiohttp.ClientSession() as session:
            async with session.get(url, allow_redirects=False) as answer:
                back = answer.headers["location"]
            for each in [back] if self._change is None else self._change(back):
                async with session.get(each) as answer:
                    self.answers.append(answer.status)

    @property
    def asked(self) -> dict[str, str]:
        return {
            name: values[0] for name, values in parse_qs(urlsplit(self.pages[-1]).query).items()
        }


def with_parameter(url: str, **changes: str | None) -> str:
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()} | changes
    given = {name: value for name, value in query.items() if value is not None}
    return urlunsplit(parts._replace(query=urlencode(given)))


# -- a browser ------------------------------------------------------------------------------------


@pytest.mark.parametrize("client_id", ["app", ""])
async def test_a_login_in_the_browser_gets_a_token_that_lasts(
    issuer: Issuer, client_id: str
) -> None:
    tokens, browser = Tokens(issuer, openid(issuer)), Browser()
    given = auth.AuthorizationCode(client_id, open_url=browser)
    async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
        assert (await agent.send("hi")).text == "ada: 42"
        assert browser.asked["code_challenge_method"] == "S256"
        assert browser.asked["redirect_uri"].startswith("http://127.0.0.1:")
        assert set(browser.asked["scope"].split()) == {"openid", "offline_access"}
        # The token is renewed without the browser, and the refresh token is replaced.
        tokens.refused = set(tokens.seen)
        assert (await agent.send("hi")).text == "ada: 42"
        tokens.refused = set(tokens.seen)
        assert (await agent.send("hi")).text == "ada: 42"
    assert len(browser.pages) == 1
    assert issuer.requests["register"] == (0 if client_id else 1)


@pytest.mark.slow
async def test_nobody_but_the_login_that_was_begun_is_let_in(issuer: Issuer) -> None:
    def attack(back: str) -> list[str]:
        elsewhere = back.replace("127.0.0.1", "localhost")
        return [
            with_parameter(back, state="another"),
            with_parameter(back, state=None),
            back + "&state=another",
            elsewhere,
            back.replace("/callback", "/favicon.ico"),
            back,
            back,
        ]

    tokens, browser = Tokens(issuer, openid(issuer)), Browser(attack)
    given = auth.AuthorizationCode("app", open_url=browser)
    async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
        assert (await agent.send("hi")).text == "ada: 42"
    assert browser.answers[:6] == [400, 400, 400, 404, 404, 200]
    assert 200 not in browser.answers[6:]


@pytest.mark.slow
async def test_a_card_cannot_have_the_code_of_one_issuer_sent_to_another(issuer: Issuer) -> None:
    async with Issuer() as evil:
        declared = oauth(issuer, "authorization_code", token_url=f"{evil.url}/token")
        tokens, browser = Tokens(issuer, declared), Browser()
        given = auth.AuthorizationCode("app", open_url=browser)
        async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
            with pytest.raises(auth.TokenRefused, match=r"different origins|is not used"):
                await agent.send("hi")
        # The issuer's own metadata cannot do this either.
        evil.lie(
            "discovery",
            authorization_endpoint=f"{issuer.url}/authorize",
            device_authorization_endpoint=f"{issuer.url}/device_authorization",
        )
        tokens = Tokens(issuer, openid(evil))
        given = auth.AuthorizationCode("app", open_url=browser)
        other = auth.DeviceCode("app", prompt=lambda prompt: None)
        async with served(bank(tokens)) as url:
            for each in (given, other):
                async with parley.connect(url, auth=each) as agent:
                    with pytest.raises(auth.TokenRefused, match=r"different origins|is not used"):
                        await agent.send("hi")
        assert evil.requests["token"] == 0


@pytest.mark.slow
async def test_a_refused_token_does_not_open_browser_after_browser(issuer: Issuer) -> None:
    tokens, browser = Tokens(issuer, oauth(issuer, "authorization_code")), Browser()
    given = auth.AuthorizationCode("app", open_url=browser, audience="another agent")
    async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
        for _ in range(3):
            with pytest.raises(parley.A2AError):
                await agent.send("hi")
    assert len(browser.pages) == 1


async def test_the_listener_survives_what_is_no_request() -> None:
    async with RedirectListener("state") as listener:
        for junk in (
            b"",
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"\xff\xfe\r\n\r\n",
            b"GET //[ HTTP/1.1\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(junk)
            writer.write_eof()
            await reader.read()
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        host = f"Host: 127.0.0.1:{listener.port}"
        writer.write(f"GET /callback?state=state&code=c HTTP/1.1\r\n{host}\r\n\r\n".encode())
        assert (await listener.wait(5))["code"] == "c"
        writer.close()


# -- a device code --------------------------------------------------------------------------------


class Naps:
    """The pauses of a device login, skipped and recorded."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.then: Any = lambda: None

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.then()
        await asyncio.sleep(0)


@pytest.mark.slow
async def test_a_login_with_a_code_waits_for_its_approval(issuer: Issuer) -> None:
    tokens, naps = Tokens(issuer, openid(issuer)), Naps()
    shown: list[auth.DevicePrompt] = []
    given = auth.DeviceCode("app", prompt=shown.append, sleep=naps)
    async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
        sending = asyncio.create_task(agent.send("hi"))
        await until(lambda: len(naps.seconds) > 2)
        issuer.approve(shown[0].code, user="grace")
        assert (await sending).text == "grace: 42"
    assert shown[0].url.startswith(issuer.url)
    assert shown[0].code in str(shown[0])


@pytest.mark.slow
async def test_a_code_that_is_denied_or_expires_ends_the_login(issuer: Issuer) -> None:
    tokens, naps = Tokens(issuer, openid(issuer)), Naps()
    denied = auth.DeviceCode("app", prompt=lambda prompt: issuer.deny(prompt.code), sleep=naps)
    now = 0.0

    def wait_long(prompt: auth.DevicePrompt) -> None:
        nonlocal now
        now = prompt.seconds

    expired = auth.DeviceCode("app", prompt=wait_long, sleep=naps)
    expired._now = lambda: now
    async with served(bank(tokens)) as url:
        for given, error in ((denied, "access_denied"), (expired, "expired_token")):
            async with parley.connect(url, auth=given) as agent:
                with pytest.raises(auth.TokenRefused) as caught:
                    await agent.send("hi")
                assert caught.value.error == error


# -- a token exchange -----------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_users_token_is_exchanged_for_one_for_the_agent(issuer: Issuer) -> None:
    tokens = Tokens(issuer, openid(issuer))
    users = issuer.token(sub="grace", audience="shop")
    given = auth.TokenExchange(users, client_id="service", client_secret="secret", audience="bank")
    async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
        assert (await agent.send("hi")).text == "grace: 42"
        await agent.send("hi")
    assert users not in tokens.seen
    assert issuer.requests["token"] == 1


# -- issuers --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://id.example/token", "not encrypted"),
        ("http://169.254.169.254/token", "not encrypted"),
        ("https://169.254.169.254/token", "link-local"),
        ("https://10.0.0.1/token", "private"),
        ("https://localhost./token", "local"),
        ("https://metadata.internal/token", "local"),
        ("file:///etc/passwd", "https"),
    ],
)
async def test_a_card_leads_nobody_into_the_clients_network(
    issuer: Issuer, address: str, words: str
) -> None:
    tokens = Tokens(issuer, oauth(issuer, "client_credentials", token_url=address))
    given = auth.ClientCredentials("service", "secret")
    async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
        with pytest.raises(auth.TokenRefused, match=words) as caught:
            await agent.send("hi")
    assert "allow_private_files" not in str(caught.value)
    assert not tokens.seen


async def test_a_task_is_given_a_token_of_an_issuer_that_the_user_names(issuer: Issuer) -> None:
    """An issuer that only the task names stays blocked, like an issuer that only a card names."""
    asked: Any = SimpleNamespace(scheme=openid(issuer), scopes=())
    agent = Origin.of("https://agent.example")
    async with HttpTransport() as http:
        files: Any = SimpleNamespace(http=http)
        named = auth.ClientCredentials("service", "secret", issuer=issuer.url)
        posted = await authorizing._content(asked, named, files, agent)
        assert posted["access_token"]
        unnamed = auth.ClientCredentials("service", "secret")
        with pytest.raises(auth.TokenRefused, match="only a card names it"):
            await authorizing._content(asked, unnamed, files, agent)


@pytest.mark.slow
async def test_an_issuer_that_redirects_is_not_followed(issuer: Issuer) -> None:
    tokens = Tokens(issuer, oauth(issuer, "client_credentials"))
    async with Issuer() as evil:
        issuer.fail("token", status=307, headers={"location": f"{evil.url}/token"}, body=b"{}")
        given = auth.ClientCredentials("service", "secret")
        async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
            with pytest.raises(auth.TokenRefused):
                await agent.send("hi")
        assert not evil.requests


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"<html>",
        b'{"access_token": ""}',
        b'{"access_token": 7, "token_type": "Bearer"}',
        b'{"access_token": "a\\r\\nX-Evil: 1", "token_type": "Bearer"}',
        b'{"access_token": "a", "token_type": "DPoP"}',
        b'{"access_token": "\\u00e9", "token_type": "Bearer"}',
    ],
)
async def test_what_is_no_token_is_not_sent(issuer: Issuer, answer: bytes) -> None:
    tokens = Tokens(issuer, oauth(issuer, "client_credentials"))
    issuer.fail("token", status=200, body=answer)
    given = auth.ClientCredentials("service", "secret")
    async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
        with pytest.raises(auth.TokenRefused):
            await agent.send("hi")
    assert not tokens.seen


@pytest.mark.slow
async def test_a_challenge_leads_only_to_issuers_that_the_card_or_the_user_names(
    issuer: Issuer,
) -> None:
    """RFC 9728: an agent cannot choose where a client's secret is sent."""
    from parley.client.auth.authorizer import Authorizer
    from parley.client.auth.credentials import Credentials
    from parley.client.bindings.http import HttpTransport
    from parley.client.origin import Origin

    async with HttpTransport() as http:
        given = [auth.ClientCredentials("service", "secret")]
        authorizer = Authorizer(Credentials(), given, http=http, address="")
        authorizer.for_origin(Origin.of("https://bank.example"))
        assert not authorizer._may_ask(issuer.url)
        assert authorizer._may_ask("https://bank.example/issuer")
        named = [auth.ClientCredentials("service", "secret", issuer=issuer.url)]
        authorizer = Authorizer(Credentials(), named, http=http, address="")
        assert authorizer._may_ask(issuer.url)
        assert not authorizer._may_ask("https://evil.example")
