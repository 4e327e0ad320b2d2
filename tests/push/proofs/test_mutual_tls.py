"""The server's client certificate, and webhook secrets in the store."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from parley.host.store_urls import open_store
from parley.model.errors import InvalidParamsError
from parley.model.operations import TaskPushNotificationConfig
from parley.push.http_sender import CHALLENGE_HEADER, response_to
from parley.push.proofs import CertificateContext, ProofFailed, WebhookCertificate, WebhookSecrets
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.webhooks import PushState
from tests.kit.certificates import Authority, trusting
from tests.kit.webhooks import Told, Webhook, webhook
from tests.push.proofs.receiving import asking, is_signed
from tests.push.pushing import PATIENT, QUICK, gated, of_version, pushing, writer

pytestmark = pytest.mark.anyio


AUTHORITY = Authority()
OTHERS = Authority("Another authority")


@asynccontextmanager
async def tls_webhook(
    folder: Path, *, authority: Authority = AUTHORITY, needs: bool = True
) -> AsyncIterator[tuple[Webhook, list[Any]]]:
    """Run a webhook that requires a certificate; collect the subjects it receives."""
    hook, shown = Webhook(), list[Any]()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.server().write(folder / "hook", "hook"))
    context.load_verify_locations(cadata=AUTHORITY.pem)
    context.verify_mode = ssl.CERT_REQUIRED if needs else ssl.CERT_OPTIONAL

    async def take(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        certificate = request.transport.get_extra_info("peercert")
        shown.append(dict(each[0] for each in certificate["subject"]) if certificate else None)
        return await hook.take(request)

    app = web.Application()
    app.router.add_post("/hook", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    bound = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    hook.url = f"https://localhost:{bound}/hook"
    try:
        yield hook, shown
    finally:
        await runner.cleanup()


def certificate(folder: Path, name: str = "parley", key: int = 2) -> WebhookCertificate:
    cert, private = AUTHORITY.caller(name, key=key).write(folder, "own")
    return WebhookCertificate.of((cert, private, AUTHORITY.write(folder)))


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_webhook_that_asks_for_it_sees_the_certificate(
    tmp_path: Path, version: str
) -> None:
    async with (
        tls_webhook(tmp_path) as (hook, shown),
        pushing(writer(1), webhook_certificate=certificate(tmp_path)) as caller,
    ):
        context = caller.context
        task = await caller.task(
            "go", asking(hook.url, "mutualtls"), context=of_version(context, version)
        )
        await hook.until_over()
        await caller.settled(task.id, PushState.DONE)
        assert [each["commonName"] for each in shown] == ["parley"] * len(hook.told)
        assert "authorization" not in hook.told[0].headers


async def test_no_other_webhook_sees_the_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other webhooks have separate connections, even at the same address."""
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", trusting(AUTHORITY))
    agent, gate = gated()
    gate.set()
    async with (
        tls_webhook(tmp_path, needs=False) as (hook, shown),
        pushing(agent, webhook_certificate=certificate(tmp_path)) as caller,
    ):
        for scheme, secret in (("MutualTLS", ""), ("Bearer", "x"), ("MutualTLS", ""), ("", "")):
            shown.clear()
            await caller.task("go", asking(hook.url, scheme, secret))
            await hook.until_over()
            hook.told.clear()
            names = {each and each["commonName"] for each in shown}
            assert names == ({"parley"} if scheme == "MutualTLS" else {None})


async def test_nothing_is_sent_to_a_webhook_with_a_certificate_of_somebody_else(
    tmp_path: Path,
) -> None:
    async with (
        tls_webhook(tmp_path, authority=OTHERS) as (hook, shown),
        pushing(writer(1), webhook_certificate=certificate(tmp_path)) as caller,
    ):
        task = await caller.task("go", asking(hook.url, "MutualTLS"))
        push = await caller.settled(task.id, PushState.SUSPENDED)
        assert "its certificate is not trusted, " in push.note  # a retry
        assert shown == []


async def test_a_certificate_is_read_again_when_its_files_change(tmp_path: Path) -> None:
    agent, gate = gated()
    async with (
        tls_webhook(tmp_path) as (hook, shown),
        pushing(agent, webhook_certificate=certificate(tmp_path), retry_policy=PATIENT) as caller,
    ):
        await caller.task("go", asking(hook.url, "MutualTLS"), return_immediately=True)
        await hook.until(lambda told: len(told) >= 2)
        certificate(tmp_path, "parley-renewed", key=5)
        gate.set()
        await hook.until_over()
        assert shown[0]["commonName"] == "parley"
        assert shown[-1]["commonName"] == "parley-renewed"


async def test_unusable_files_leave_the_old_certificate(tmp_path: Path) -> None:
    context = CertificateContext(certificate(tmp_path))
    before = context.get()
    (tmp_path / "own.pem").write_text("nonsense")
    assert context.get() is before


async def test_it_is_refused_without_a_certificate_and_without_tls(tmp_path: Path) -> None:
    def refused_for(error: InvalidParamsError) -> list[str]:
        return [each.field for each in error.violations]

    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent) as caller:
        with pytest.raises(InvalidParamsError, match="webhook_certificate=") as refused:
            await caller.task("go", asking("https://localhost/hook", "MutualTLS"))
        assert refused_for(refused.value)[0].endswith("authentication.scheme")
    async with pushing(agent, webhook_certificate=certificate(tmp_path)) as caller:
        with pytest.raises(InvalidParamsError, match="certificates are part of TLS") as refused:
            await caller.task("go", asking(hook.url, "MutualTLS"))
        assert refused_for(refused.value)[0].endswith("url")
        with pytest.raises(InvalidParamsError, match="the server's certificate") as refused:
            await caller.task("go", asking("https://localhost/hook", "MutualTLS", "hunter2"))
        assert "hunter2" not in refused.value.message


@pytest.mark.parametrize("given", ["missing.pem", ("a.pem", "b.pem", "c.pem", "d.pem"), 3])
async def test_what_is_no_certificate_is_refused(given: Any) -> None:
    agent, _ = gated()
    with pytest.raises(TypeError, match="webhook_certificate= is the files"):
        async with pushing(agent, webhook_certificate=given):
            pass


# -- webhook secrets in the store: unreadable without the operator's key ---------------------------


KEY = "a key of an operator, long enough"
SECRET, TOKEN = "a-secret-for-signatures-0123456789", "the-token-of-ada"
URL = "https://hooks.example.com/a"


def given(url: str = URL, **fields: str) -> TaskPushNotificationConfig:
    config: TaskPushNotificationConfig = asking(url, "HMAC-SHA256", SECRET, token=TOKEN, **fields)
    return config


@pytest.mark.parametrize("key", [KEY, None])
async def test_a_database_has_the_secrets_of_webhooks_unreadable(
    key: str | None, tmp_path: Path
) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'parley.db'}")
    async with webhook() as hook, pushing(writer(2), store, secret_key=key) as caller:
        task = await caller.task("go", given(hook.url))
        await hook.until_over()
        assert {told.headers["x-a2a-notification-token"] for told in hook.told} == {TOKEN}
        assert all(is_signed(told, SECRET.encode()) for told in hook.told)
        shown = await caller.get(task.id, "default")
        assert shown.token == TOKEN
        assert shown.authentication is not None
        assert (shown.authentication.scheme, shown.authentication.credentials) == (
            "HMAC-SHA256",
            "",
        )
        written = b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())
        for secret in (SECRET, TOKEN):
            assert (secret.encode() in written) == (key is None)


async def test_a_direct_reply_and_a_challenge_have_the_secrets(tmp_path: Path) -> None:
    def confirm(told: Told) -> object:
        from aiohttp import web

        if CHALLENGE_HEADER.lower() not in told.headers:
            return 200
        return web.json_response({"response": response_to(told.json["challenge"], TOKEN)})

    options = {"secret_key": KEY, "webhook_challenge": True}
    async with webhook() as hook, pushing(writer(1), **options) as caller:
        hook.answer = confirm
        await caller.task("go", given(hook.url))
        await hook.until_over()
        assert hook.told[-1].headers["x-a2a-notification-token"] == TOKEN


async def test_with_another_key_nothing_is_sent_and_the_owner_sees_why() -> None:
    store = MemoryTaskStore()
    async with webhook() as hook:
        async with pushing(writer(1), store, secret_key=KEY) as caller:
            hook.answer = lambda told: 500
            task = await caller.task("go", given(hook.url), return_immediately=True)
            await hook.until(lambda told: bool(told))
        count = len(hook.told)
        async with pushing(writer(1), store, secret_key=KEY[::-1], retry_policy=QUICK) as caller:
            push = await caller.settled(task.id, PushState.SUSPENDED)
            assert "cannot be read with this server's secret key" in push.note
            assert (await caller.get(task.id, "default")).token == ""
        assert len(hook.told) == count


def test_secrets_are_for_one_url_and_one_field() -> None:
    secrets = WebhookSecrets(KEY.encode())
    stored = secrets.sealed(given())
    assert secrets.opened(stored) == given()
    assert secrets.sealed(given()) == stored
    assert secrets.sealed(given(f"{URL}b")).token != stored.token
    assert stored.authentication is not None
    moved = replace(stored.authentication, credentials=stored.token)
    for changed in (
        replace(stored, url="https://evil.example"),
        replace(stored, authentication=moved),
        replace(stored, token=stored.token[:-2]),
    ):
        with pytest.raises(ProofFailed):
            secrets.opened(changed)
    with pytest.raises(ProofFailed):
        WebhookSecrets(None).opened(stored)
