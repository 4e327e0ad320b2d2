"""Stored logins: where, for which agent, and how several programs renew them at once."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import parley
from parley.client import auth
from parley.client.auth import storage as storage_file
from parley.client.auth.logins import CLIENT, KeptLogin, Logins, SignIn, sign_in, sign_out
from parley.client.auth.storage import PASSPHRASE, STORAGE, LoginStorage, StorageUnusable
from parley.client.bindings.http import HttpTransport
from parley.client.errors import OriginNotTrusted
from parley.client.origin import Origin
from parley.testing import Issuer
from tests.client.auth.declared import Tokens, bank, oauth, openid, served
from tests.kit.scripted_server import Exchange, card, scripted, task

pytestmark = pytest.mark.anyio

BANK = "https://bank.example"
SECRET = "s3cret-value"
is_posix = pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX")


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer(audience="bank", device_interval=0) as issuer:
        yield issuer


async def log_in(url: str, issuer: Issuer, tokens: Tokens, **wish: Any) -> KeptLogin:
    """Log in as a user would, with a code that is approved at once."""
    wanted = SignIn(**({"flow": "device-code", "scheme": openid(issuer)} | wish))
    async with HttpTransport() as http:
        kept = await sign_in(
            wanted,
            Origin.of(url),
            address=url,
            http=http,
            prompt=lambda prompt: issuer.approve(prompt.code),
        )
    Logins().put(kept)
    return kept


@pytest.mark.slow
async def test_a_program_takes_the_token_that_another_has_renewed(issuer: Issuer) -> None:
    tokens = Tokens(issuer, openid(issuer))
    async with served(bank(tokens)) as url:
        kept = await log_in(url, issuer, tokens)
        async with parley.connect(url) as one, parley.connect(url) as other:
            await one.send("hi")
            await other.send("hi")
            tokens.refused = {kept.access_token}
            await one.send("hi")
            asked = issuer.requests["token"]
            # The other program still holds the used refresh token.
            assert (await other.send("hi")).text == "ada: 42"
            assert issuer.requests["token"] == asked


@pytest.mark.slow
async def test_a_login_that_has_ended_says_how_to_log_in_again(issuer: Issuer) -> None:
    tokens = Tokens(issuer, openid(issuer))
    async with served(bank(tokens)) as url:
        kept = await log_in(url, issuer, tokens)
        issuer.revoke(kept.refresh_token)
        tokens.refused = {kept.access_token}
        issuer.fail("token", status=400, body=b'{"error": "invalid_grant"}')
        async with parley.connect(url) as agent:
            with pytest.raises(auth.TokenRefused, match=f"log in again: parley auth login {url}"):
                await agent.send("hi")


@pytest.mark.slow
async def test_a_token_that_cannot_be_kept_is_used(
    issuer: Issuer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = Tokens(issuer, openid(issuer))
    async with served(bank(tokens)) as url:
        kept = await log_in(url, issuer, tokens)
        async with parley.connect(url) as agent:
            tokens.refused = {kept.access_token}
            [file] = folder.iterdir()
            file.write_text("torn")
            assert (await agent.send("hi")).text == "ada: 42"
            assert (await agent.send("hi")).text == "ada: 42"
    assert "the renewed login could not be stored" in caplog.text


@pytest.mark.parametrize("after", ["logout", "another login"])
async def test_a_running_program_brings_no_login_back(issuer: Issuer, after: str) -> None:
    tokens = Tokens(issuer, openid(issuer))
    client = {"flow": CLIENT, "client_id": "service", "client_secret": "secret"}
    async with served(bank(tokens)) as url:
        kept = await log_in(url, issuer, tokens, **client)
        async with parley.connect(url) as agent:
            await agent.send("hi")
            tokens.refused = {kept.access_token}
            if after == "logout":
                Logins().remove(Origin.of(url))
                later = None
            else:
                later = await log_in(url, issuer, tokens)
            assert (await agent.send("hi")).text == "service: 42"
            assert Logins().find(Origin.of(url)) == later


@pytest.mark.slow
async def test_a_clients_login_gets_tokens_with_more_scopes(issuer: Issuer) -> None:
    tokens = Tokens(issuer, openid(issuer))
    client = {"flow": CLIENT, "client_id": "service", "client_secret": "secret"}
    async with served(bank(tokens)) as url:
        await log_in(url, issuer, tokens, **client)
        async with parley.connect(url) as agent:
            assert (await agent.send("now", metadata={"skill": "pay"})).state.is_interrupted


async def test_a_login_goes_to_its_origin_and_nowhere_else() -> None:
    async def agent(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json(the_card)
        else:
            await exchange.result(task())

    async def elsewhere(exchange: Exchange) -> None:
        await exchange.result(task())

    bearer = {"securitySchemes": {"b": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}}
    bearer["securityRequirements"] = [{"schemes": {"b": {"list": []}}}]  # type: ignore[assignment]
    async with scripted(agent) as here, scripted(elsewhere) as there:
        login = KeptLogin(origin=here.url, kind="bearer", secret=SECRET)
        Logins().put(login)
        the_card = card(here.url, **bearer)
        async with parley.connect(here.url) as remote:
            await remote.get("t-1")
        assert here.exchanges[-1].headers["authorization"] == f"Bearer {SECRET}"
        # The same agent's card, now with an interface at another owner's origin.
        the_card = card(there.url, **bearer)
        with pytest.raises(OriginNotTrusted):
            await parley.connect(here.url)
        # Another agent whose card leads there has no login at all.
        async with parley.connect(the_card) as remote:
            await remote.get("t-1")
        assert "authorization" not in there.exchanges[-1].headers


async def test_a_card_that_the_caller_passes_takes_a_login_to_no_other_origin() -> None:
    async def agent(exchange: Exchange) -> None:
        await exchange.result(task())

    bearer: dict[str, Any] = {
        "securitySchemes": {"b": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {"b": {"list": []}}}],
    }
    async with scripted(agent) as here, scripted(agent) as there:
        Logins().put(KeptLogin(origin=here.url, kind="bearer", secret=SECRET))
        the_card = card(here.url, **bearer)
        [own] = the_card["supportedInterfaces"]
        the_card["supportedInterfaces"] = [
            {**own, "protocolBinding": "HTTP+JSON"},
            {**own, "url": there.url},
        ]
        with pytest.raises(OriginNotTrusted):
            async with parley.connect(the_card, binding="JSONRPC") as remote:
                await remote.get("t-1")
        assert not there.exchanges
        the_card["supportedInterfaces"] = [own]
        async with parley.connect(the_card) as remote:
            await remote.get("t-1")
        assert here.exchanges[-1].headers["authorization"] == f"Bearer {SECRET}"


@pytest.mark.slow
async def test_a_refresh_token_goes_only_to_the_origin_that_gave_it(issuer: Issuer) -> None:
    async with Issuer() as evil:
        declared = oauth(issuer, "device_code", refresh_url=f"{evil.url}/token")
        tokens = Tokens(issuer, declared)
        async with served(bank(tokens)) as url:
            kept = await log_in(url, issuer, tokens, scheme=declared, client_id="app")
            tokens.refused = {kept.access_token}
            async with parley.connect(url) as agent:
                assert (await agent.send("hi")).text == "ada: 42"
        # The metadata of another issuer cannot redirect the token at logout either.
        evil.lie(
            "discovery",
            device_authorization_endpoint=f"{issuer.url}/device_authorization",
            token_endpoint=f"{issuer.url}/token",
        )
        kept = await log_in(url, issuer, tokens, scheme=openid(evil), client_id="app")
        async with HttpTransport() as http:
            await sign_out(kept, http)
        assert evil.requests["token"] == evil.requests["revoke"] == 0


def test_a_login_under_another_origins_name_does_not_count() -> None:
    logins = Logins()
    storage = LoginStorage()
    storage.put("https://evil.example", '{"origin":"https://bank.example","kind":"bearer"}')
    assert logins.find(Origin.of("https://evil.example")) is None


# -- files ----------------------------------------------------------------------------------------


@is_posix
def test_a_file_is_its_owners_alone(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = os.umask(0)
    try:
        for name in (BANK, "https://other.example"):
            Logins().put(KeptLogin(origin=name, kind="bearer", secret=SECRET))
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    files = list(folder.iterdir())
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    assert caplog.text.count("logins are kept in") == 1
    assert "not encrypted" in caplog.text
    assert SECRET not in caplog.text


def test_a_passphrase_is_refused_and_a_file_that_it_encrypted_asks_for_a_new_login(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSPHRASE, "correct horse")
    with pytest.raises(StorageUnusable, match=r"not supported any more: .* unset it"):
        Logins().put(KeptLogin(origin=BANK, kind="bearer", secret=SECRET))
    assert not folder.exists() or list(folder.iterdir()) == []
    monkeypatch.delenv(PASSPHRASE)
    Logins().put(KeptLogin(origin=BANK, kind="bearer", secret=SECRET))
    [file] = folder.iterdir()
    file.write_bytes(b'{"origin": "%s", "sealed": {"kdf": "scrypt"}}' % BANK.encode())
    with pytest.raises(StorageUnusable, match="delete it, and log in again"):
        Logins().find(Origin.of(BANK))


def test_a_write_that_fails_leaves_what_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = Logins()
    logins.put(KeptLogin(origin=BANK, kind="bearer", secret="first"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage_file.os, "fsync", full)
    with pytest.raises(StorageUnusable, match="No space left"):
        logins.put(KeptLogin(origin=BANK, kind="bearer", secret="second"))
    found = logins.find(Origin.of(BANK))
    assert found is not None
    assert found.secret == "first"
    assert len(list(folder.iterdir())) == 1


# -- the keyring ----------------------------------------------------------------------------------


class Keyring:
    """A keyring in memory."""

    name = "Test keyring"
    priority = 1

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, name: str) -> str | None:
        return self.held.get((service, name))

    def set_password(self, service: str, name: str, value: str) -> None:
        self.held[service, name] = value

    def delete_password(self, service: str, name: str) -> None:
        del self.held[service, name]


def test_logins_are_in_the_keyring_where_there_is_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("keyring")
    ring = Keyring()
    monkeypatch.setenv(STORAGE, "keyring")
    monkeypatch.setenv(PASSPHRASE, "correct horse")
    monkeypatch.setattr(storage_file, "_backend", lambda: ring)
    logins = Logins()
    for name in (BANK, "https://other.example"):
        logins.put(KeptLogin(origin=name, kind="bearer", secret=SECRET))
    assert "Test keyring" in logins.place
    assert caplog.text.count(f"{PASSPHRASE} is not used") == 1
    assert [login.origin for login in logins.all()] == [BANK, "https://other.example"]
    assert logins.remove(Origin.of(BANK))
    assert not logins.remove(Origin.of(BANK))
    assert [login.origin for login in Logins().all()] == ["https://other.example"]
    assert not folder.exists()


def test_a_keyring_that_fails_is_an_error_without_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = pytest.importorskip("keyring.errors")

    def locked(*_: str) -> None:
        raise errors.KeyringLocked(f"could not store {SECRET}")

    ring = SimpleNamespace(name="Locked", get_password=locked, set_password=locked)
    monkeypatch.setenv(STORAGE, "keyring")
    monkeypatch.setattr(storage_file, "_backend", lambda: ring)
    with pytest.raises(StorageUnusable, match=r"failed \(KeyringLocked\)") as caught:
        Logins().put(KeptLogin(origin=BANK, kind="bearer", secret=SECRET))
    assert SECRET not in str(caught.value)


# -- the environment ------------------------------------------------------------------------------


@pytest.mark.slow
async def test_credentials_of_the_environment_are_for_the_origin_that_it_names(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = Tokens(issuer, openid(issuer))
    async with served(bank(tokens)) as url:
        monkeypatch.setenv("PARLEY_TOKEN", issuer.token(sub="grace"))
        async with parley.connect(url) as agent:
            assert not agent.has_credentials
        assert "PARLEY_TOKEN is set, but not its origin" in caplog.text
        monkeypatch.setenv("PARLEY_AUTH_ORIGIN", "https://another.example")
        async with parley.connect(url) as agent:
            assert not agent.has_credentials
        monkeypatch.setenv("PARLEY_AUTH_ORIGIN", url)
        async with parley.connect(url) as agent:
            assert (await agent.send("hi")).text == "grace: 42"
        monkeypatch.delenv("PARLEY_TOKEN")
        monkeypatch.setenv("PARLEY_CLIENT_ID", "service")
        monkeypatch.setenv("PARLEY_CLIENT_SECRET", "secret")
        for _ in range(2):
            async with parley.connect(url) as agent:
                assert (await agent.send("hi")).text == "service: 42"
    assert issuer.requests["token"] == 1
