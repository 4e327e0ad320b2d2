"""Third-party receivers verify our deliveries: Standard Webhooks and JWTs, in 3 languages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from parley.client import connect
from parley.model.operations import TaskPushNotificationConfig
from parley.push import receiver, verify_token
from parley.security.signing.keys import SigningKeys
from parley.server.run import serving
from tests.kit.waiting import until
from tests.kit.webhooks import webhook
from tests.peers.conftest import case
from tests.peers.environments import (
    WEBHOOKS_GO,
    WEBHOOKS_JS,
    WEBHOOKS_PYTHON,
    NotMade,
    Peer,
    command,
)
from tests.push.proofs.receiving import asking
from tests.push.pushing import PATIENT, of_version, pushing, writer
from tests.push.receiving.delivering import SECRET, Handled, hmac_headers, update
from tests.security.signing.key_sets import key_set, private_jwk

pytestmark = [pytest.mark.anyio, pytest.mark.peer]

KEYS = SigningKeys.parse(key_set(private_jwk(kid="one")))
RECEIVERS = {
    "python": (WEBHOOKS_PYTHON, "webhooks/receiver.py"),
    "javascript": (WEBHOOKS_JS, "webhooks/receiver.mjs"),
    "go": (WEBHOOKS_GO, "webhooks/go/receiver.go"),
}


class Receiver:
    """A receiving program. ``told`` has its printed lines."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.told: list[dict[str, str]] = []
        self.changed = asyncio.Event()

    async def read(self, output: asyncio.StreamReader) -> None:
        while line := await output.readline():
            self.told.append(json.loads(line))
            self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.told) < count:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def receiving(name: str, *words: str) -> AsyncIterator[Receiver]:
    peer: Peer
    peer, script = RECEIVERS[name]
    try:
        started = await asyncio.to_thread(command, peer, script)
    except NotMade as error:
        pytest.skip(str(error))
    process = await asyncio.create_subprocess_exec(
        *started, *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            url = (await process.stdout.readline()).decode().strip()
        assert url, f"{started} did not start"
        receiver = Receiver(url)
        reading = asyncio.create_task(receiver.read(process.stdout))
        yield receiver
    finally:
        process.stdin.close()
        await process.wait()
    await reading


async def deliver(asked: Any, version: str, **options: Any) -> tuple[str, int]:
    """Run a task with webhook delivery; return its id, and how many events it has."""
    async with pushing(writer(4), retry_policy=PATIENT, **options) as caller:
        task = await caller.task("go", asked, context=of_version(caller.context, version))
        count = (await caller.store.events(task.id, 0, 100))[-1].seq

        async def is_delivered() -> bool:
            pushes = await caller.store.pushes(task.id)
            return all(push.cursor >= count for push in pushes)

        await until(is_delivered, 20)
        return task.id, count


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("name", RECEIVERS)
async def test_standard_webhooks_of_others_verify_every_delivery(name: str, version: str) -> None:
    async with receiving(name, "hmac", SECRET) as hook:
        asked = asking(hook.url, "HMAC-SHA256", f"another-secret-of-30-characters {SECRET}")
        task_id, count = await deliver(asked, version)
        assert hook.told
        assert [each["why"] for each in hook.told] == [""] * len(hook.told)
        assert hook.told[-1]["id"] == f"{task_id}/default/{count}"
        if version == "1.0":
            assert [each["id"] for each in hook.told] == [
                f"{task_id}/default/{n}" for n in range(1, count + 1)
            ]
        # The receivers reject a wrong signature and a changed body.
        before, body = len(hook.told), update()
        other = "whsec_" + "A" * 43 + "="
        async with aiohttp.ClientSession() as session:
            for sent, headers in (
                (body, hmac_headers(body)),
                (body, hmac_headers(body, secret=other)),
                (body + b" ", hmac_headers(body)),
                (body, hmac_headers(body, at=1)),
            ):
                async with session.post(hook.url, data=sent, headers=headers):
                    pass
        await hook.until(before + 4)
        assert [bool(each["why"]) for each in hook.told[before:]] == [False, True, True, True]


@pytest.mark.parametrize("name", RECEIVERS)
async def test_jwts_are_verified_by_the_keys_that_the_server_publishes(name: str) -> None:
    async with webhook() as keys:
        keys.answer = lambda told: web.json_response(KEYS.published)
        issuer = keys.url.removesuffix("/hook")
        address = f"{issuer}/.well-known/jwks.json"
        async with receiving(name, "jwt", address, issuer) as hook:
            asked = asking(hook.url, "JWT")
            task_id, count = await deliver(asked, "1.0", signing_keys=KEYS, url=issuer)
            assert [each["why"] for each in hook.told] == [""] * count
            assert hook.told[-1]["id"] == f"{task_id}/default/{count}"
        forger = SigningKeys.parse(key_set(private_jwk(kid="one")))
        async with receiving(name, "jwt", address, issuer) as hook:
            options: dict[str, Any] = {"signing_keys": forger, "url": issuer}
            async with pushing(writer(1), **options) as caller:
                await caller.task("go", asking(hook.url, "JWT"))
                await hook.until(1)
            assert all(each["why"] for each in hook.told)


SENDERS = [
    case(peer, version)
    for peer, version in (
        ("python-1.3", "1.0"),
        ("python-1.3", "0.3"),
        ("js-1.3", "1.0"),
        ("js-1.3", "0.3"),
        ("python-0.3", "0.3"),
        ("js-0.3", "0.3"),
    )
]


@pytest.mark.parametrize("sender", SENDERS, ids=" ".join)
async def test_our_receiver_reads_what_official_servers_send(
    sender: tuple[str, str], official_servers: Callable[[str], str]
) -> None:
    (peer, version), handled = sender, Handled()
    url = official_servers(peer)
    async with connect(url, binding="JSONRPC", version=version) as agent:
        app = receiver(handled, verify=verify_token("the-token"), agent=agent)
        async with serving(app) as hook:
            push = TaskPushNotificationConfig(id="w", url=hook, token="the-token")
            task = await agent.send("report 3 0", push=push)
            assert task.id
            await until(lambda: any(each.is_final for each in handled.got), 20)
            assert {each.task_id for each in handled.got} == {task.id}
            assert {each.verified_by for each in handled.got} == {"token"}
            sent = "1.0" if peer == "python-1.3" else version  # it sends only 1.0 to webhooks
            assert {each.version for each in handled.got} == {sent}
            assert {each.id for each in handled.got} == {""}  # none of the peers sends an id
            fetched = await handled.got[-1].task()
            assert (fetched.id, fetched.state) == (task.id, task.state)


async def test_our_receiver_reads_what_the_official_go_sender_sends() -> None:
    """Its server rejects webhooks on this machine, so the test uses only its sender."""
    try:
        program = await asyncio.to_thread(command, *RECEIVERS["go"])
    except NotMade as error:
        pytest.skip(str(error))
    handled = Handled()
    app = receiver(handled, verify=verify_token("the-token"), acknowledge="after")
    async with serving(app) as hook:
        for token, status in (("the-token", 0), ("another", 2)):
            process = await asyncio.create_subprocess_exec(
                *program, "send", hook, token, stderr=asyncio.subprocess.DEVNULL
            )
            assert await process.wait() == status
    kinds = [type(each.event).__name__ for each in handled.got]
    assert kinds == ["Task", "TaskStatusUpdateEvent", "TaskArtifactUpdateEvent", *kinds[1:2]]
    assert handled.got[-1].is_final
