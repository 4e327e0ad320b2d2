"""The issuer of the package ``oidc-provider``: its tokens are accepted, and clients obtain them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, run
from urllib.request import HTTPCookieProcessor, build_opener

import aiohttp
import pytest

import parley
from parley import Agent, Turn
from parley.client.auth import AuthorizationCode, ClientCredentials
from parley.model.errors import PermissionDeniedError, UnauthenticatedError
from parley.security import ClientCredentialsOAuthFlow, OAuth2, OpenIdConnect
from parley.server.run import serving
from tests.attacks.guards import basic
from tests.peers.environments import OIDC_PROVIDER, NotMade, command

pytestmark = pytest.mark.anyio

SERVICE = ("service", "secret-of-the-service")
BROWSER = """
import sys
from http.cookiejar import CookieJar
from urllib.request import HTTPCookieProcessor, build_opener

build_opener(HTTPCookieProcessor(CookieJar())).open(sys.argv[1], timeout=20).read()
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    """The address of the issuer."""
    try:
        words = command(OIDC_PROVIDER, "servers/oidc_provider.mjs")
    except NotMade as error:
        pytest.skip(f"oidc-provider needs Node.js: {error}")
    with Popen(words, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        url = process.stdout.readline().decode().strip()
        assert url, f"{words} did not start"
        yield url
        process.stdin.close()
        process.wait(10)


def bank(scheme: OpenIdConnect | OAuth2) -> Agent:
    """Return the protected agent."""
    agent = Agent("Bank", security=scheme)

    @agent.skill
    async def whoami(turn: Turn) -> str:
        return f"{turn.caller.id} by {turn.caller.client}"

    @agent.skill(security=scheme.with_scopes("pay"))
    async def pay(turn: Turn) -> str:
        return f"paid by {turn.caller.id}"

    return agent


@asynccontextmanager
async def protected(agent: Agent) -> AsyncIterator[str]:
    async with serving(parley.asgi(agent, drain=0.0)) as url:
        yield url


def browse(url: str) -> bool:
    """Act as a browser: follow redirects, with cookies."""
    with build_opener(HTTPCookieProcessor(CookieJar())).open(url, timeout=20) as page:
        return page.status == 200


async def granted(provider: str, **more: str) -> str:
    """Return a token of the client credentials grant, requested without our client."""
    form = {"grant_type": "client_credentials", **more}
    async with (
        aiohttp.ClientSession(headers=basic(*SERVICE)) as http,
        http.post(f"{provider}/token", data=form) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["access_token"])


async def test_its_tokens_are_accepted_and_those_for_others_are_not(provider: str) -> None:
    token = await granted(provider)
    foreign = await granted(provider, resource="https://hotel.example.com/")
    async with protected(bank(OpenIdConnect(provider, audience="bank"))) as url:
        async with parley.connect(url, bearer=token) as remote:
            assert (await remote.send("hi")).text == "service by service"
        for wrong in (foreign, token[:-8] + "AAAAAAAA"):
            async with parley.connect(url, bearer=wrong) as remote:
                with pytest.raises(UnauthenticatedError):
                    await remote.send("hi")


async def test_a_service_obtains_a_token_and_steps_up(provider: str) -> None:
    async with (
        protected(bank(OpenIdConnect(provider, audience="bank"))) as url,
        parley.connect(url, auth=ClientCredentials(*SERVICE)) as remote,
    ):
        assert (await remote.send("hi")).text == "service by service"
        paid = await remote.send("now", metadata={"skill": "pay"})
        assert paid.text == "paid by service"


async def test_oauth2_finds_its_keys_by_its_metadata(provider: str) -> None:
    flow = ClientCredentialsOAuthFlow(token_url=f"{provider}/token", scopes={"pay": "to pay"})
    async with (
        protected(bank(OAuth2(flow, audience="bank", issuer=provider))) as url,
        parley.connect(url, auth=ClientCredentials(*SERVICE)) as remote,
    ):
        assert (await remote.send("hi")).text == "service by service"


async def test_a_person_logs_in_with_code_and_pkce(provider: str) -> None:
    """The client registers itself, and redirects are followed as a browser does."""
    async with (
        protected(bank(OpenIdConnect(provider, audience="bank"))) as url,
        parley.connect(url, auth=AuthorizationCode(open_url=browse)) as remote,
    ):
        assert (await remote.send("hi")).text.startswith("ada by ")


def parley_command(home: Path, *words: str) -> str:
    """Run a user's command with its own home and browser, and return its output."""
    script = home / "browser.py"
    script.write_text(BROWSER)
    environment = {
        **os.environ,
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "PARLEY_AUTH_STORAGE": "file",
        "BROWSER": f"{sys.executable} {script} %s",
        "NO_COLOR": "1",
    }
    words = (sys.executable, "-m", "parley.cli", *words)
    done = run(words, env=environment, stdout=PIPE, stderr=STDOUT, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    return done.stdout


async def test_parley_auth_login_is_all_that_a_person_does(provider: str, tmp_path: Path) -> None:
    async def parley_does(*words: str) -> str:
        return await asyncio.to_thread(parley_command, tmp_path, *words)

    async with protected(bank(OpenIdConnect(provider, audience="bank"))) as url:
        await parley_does("auth", "login", url)
        assert "ada by" in await parley_does("send", "-a", url, "hi")
        assert url in await parley_does("auth", "status")
        await parley_does("auth", "logout", url)
        assert url not in await parley_does("auth", "status")


async def test_without_a_login_nobody_is_let_in(provider: str) -> None:
    async with (
        protected(bank(OpenIdConnect(provider, audience="bank"))) as url,
        parley.connect(url) as remote,
    ):
        for skill in ("whoami", "pay"):
            with pytest.raises((UnauthenticatedError, PermissionDeniedError)):
                await remote.send("hi", metadata={"skill": skill})
