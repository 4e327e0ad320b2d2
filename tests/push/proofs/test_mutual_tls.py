"""The client certificate of a server, shown to the webhooks that ask for it and to no other."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from parley.model.errors import InvalidParamsError
from parley.push.proofs import CertificateContext, WebhookCertificate
from parley.store.protocols.webhooks import PushState
from tests.kit.certificates import Authority, trusting
from tests.kit.webhooks import Webhook, webhook
from tests.push.proofs.receiving import asking
from tests.push.pushing import PATIENT, gated, of_version, pushing, writer

pytestmark = pytest.mark.anyio

AUTHORITY = Authority()
OTHERS = Authority("Another authority")


@asynccontextmanager
async def tls_webhook(
    folder: Path, *, authority: Authority = AUTHORITY, needs: bool = True
) -> AsyncIterator[tuple[Webhook, list[Any]]]:
    """A webhook that asks for a certificate, and the subjects that it is shown."""
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
    """They have connections of their own, at the same address too."""
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
        assert "its certificate is not trusted, " in push.note  # it was tried again
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
        with pytest.raises(InvalidParamsError, match="that of the server") as refused:
            await caller.task("go", asking("https://localhost/hook", "MutualTLS", "hunter2"))
        assert "hunter2" not in refused.value.message


@pytest.mark.parametrize("given", ["missing.pem", ("a.pem", "b.pem", "c.pem", "d.pem"), 3])
async def test_what_is_no_certificate_is_refused(given: Any) -> None:
    agent, _ = gated()
    with pytest.raises(TypeError, match="webhook_certificate= is the files"):
        async with pushing(agent, webhook_certificate=given):
            pass


async def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    agent, _ = gated()
    cert, key = AUTHORITY.caller("parley").write(tmp_path, "own")
    _, other = AUTHORITY.caller("parley", key=7).write(tmp_path, "other")
    _, sealed = AUTHORITY.caller("parley").write(tmp_path, "sealed", password=b"secret")
    for files in ((cert, other), (tmp_path / "none.pem", key), (cert, sealed)):
        with pytest.raises(ValueError, match=r"the certificate for webhooks .* cannot be used"):
            async with pushing(agent, webhook_certificate=files):
                pass
