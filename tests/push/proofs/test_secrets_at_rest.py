"""The secrets of webhooks in the store: unreadable without the operator's key."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from parley.host.store_urls import open_store
from parley.model.operations import TaskPushNotificationConfig
from parley.push.http_sender import CHALLENGE_HEADER, response_to
from parley.push.proofs import ProofFailed, WebhookSecrets
from parley.security.sealing import SealBroken, Sealer
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.webhooks import PushState
from tests.kit.webhooks import Told, webhook
from tests.push.proofs.receiving import asking, is_signed
from tests.push.pushing import QUICK, pushing, writer

pytestmark = pytest.mark.anyio

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


async def test_a_configuration_that_comes_again_changes_nothing() -> None:
    async with webhook() as hook, pushing(writer(1), secret_key=KEY) as caller:
        task = await caller.task("go", given(hook.url))
        await hook.until_over()
        [before] = await caller.store.pushes(task.id)
        await caller.create(task.id, hook.url, token=TOKEN, authentication=given().authentication)
        [after] = await caller.store.pushes(task.id)
        assert after.revision == before.revision


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


def test_what_was_stored_before_there_was_a_key_is_read() -> None:
    assert WebhookSecrets(KEY.encode()).opened(given()) == given()


def test_equal_content_is_sealed_equally_for_one_context() -> None:
    sealer = Sealer(KEY.encode())
    sealed = sealer.seal_equally("p", b"content", "here")
    assert sealed == sealer.seal_equally("p", b"content", "here")
    assert sealer.open("p", sealed, "here") == b"content"
    others = {sealer.seal_equally("p", b"content", "her"), sealer.seal_equally("q", b"content", "")}
    assert sealed not in others
    with pytest.raises(SealBroken):
        sealer.open("p", sealed, "there")
