"""The output and logs of the command contain none of the secrets that it uses."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import parley
from parley import Agent, Turn
from parley.security import ApiKey, OpenIdConnect
from parley.server.run import serving
from parley.testing import Issuer
from tests.attacks.guards import AUDIENCE

pytestmark = pytest.mark.anyio

SECRETS = {
    "PARLEY_CLIENT_SECRET": "secret-of-the-client-0001",
    "A2ACLI_BEARER": "bearer-of-a-user-0002",
    "A2ACLI_API_KEY": "key-of-a-user-0003",
}
BROWSER = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=20).read()"


class Shell:
    """A user's commands with a home of their own, and their whole output."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.printed = ""
        (home / "browser.py").write_text(BROWSER)

    def __call__(self, *words: str, secret: str = "") -> int:
        given = {secret: SECRETS[secret]} if secret else {}
        done = subprocess.run(
            [sys.executable, "-m", "parley.cli", *words],
            env={
                **{name: value for name, value in os.environ.items() if name not in SECRETS},
                "HOME": str(self.home),
                "XDG_CONFIG_HOME": str(self.home / "config"),
                "PARLEY_AUTH_STORAGE": "file",
                "BROWSER": f"{sys.executable} {self.home / 'browser.py'} %s",
                "NO_COLOR": "1",
                **given,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        self.printed += done.stdout
        return done.returncode

    def kept(self) -> set[str]:
        """Return the long texts of the stored logins: these may be secrets."""
        files = [path for path in (self.home / "config").rglob("*") if path.is_file()]
        found = "".join(path.read_text("utf-8", "replace") for path in files)
        return {text for text in re.findall(r'"([A-Za-z0-9._~-]{30,})[\\]*"', found)}


async def test_the_command_shows_no_secret_even_when_it_debugs(tmp_path: Path) -> None:
    clients = {"app": "", "service": SECRETS["PARLEY_CLIENT_SECRET"]}
    async with Issuer(audience=AUDIENCE, clients=clients) as issuer:
        openid = OpenIdConnect(issuer.url, audience=AUDIENCE)
        agent = Agent("Vault", security=openid | ApiKey(keys={}))

        @agent.skill
        async def whoami(turn: Turn) -> str:
            return f"You are {turn.caller.id}."

        async with serving(parley.asgi(agent, drain=0.0)) as url:
            shell = Shell(tmp_path)

            async def does(*words: str, secret: str = "") -> int:
                loud = ("--debug", "--verbose")
                return await asyncio.to_thread(shell, *words, *loud, secret=secret)

            as_service = ("--flow", "client-credentials", "--client-id", "service")
            assert await does("auth", "login", url, *as_service, secret="PARLEY_CLIENT_SECRET") == 0
            assert await does("send", "-a", url, "hi") == 0
            secrets = shell.kept()
            assert await does("auth", "logout", url) == 0
            assert await does("auth", "login", url) == 0
            assert await does("send", "-a", url, "hi", "-o", "json") == 0
            assert await does("auth", "status", "-o", "json") == 0
            secrets |= shell.kept()
            issuer.rotate(keep=False)
            issuer.fail("token", status=400, body=b'{"error": "invalid_grant"}')
            await does("send", "-a", url, "hi")
            for variable in ("A2ACLI_BEARER", "A2ACLI_API_KEY"):
                assert await does("send", "-a", url, "hi", secret=variable) != 0
                assert await does("card", "get", "-a", url, secret=variable) == 0
    assert len(secrets) >= 3, "the kept logins were not found"
    assert "You are service." in shell.printed
    assert "You are ada." in shell.printed
    assert [each for each in {*secrets, *SECRETS.values()} if each in shell.printed] == []
