"""Webhooks of a fleet whose replicas sign with one key file, during its rotation."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from parley.push import (
    DeliveredRequest,
    NotificationRefused,
    Verified,
    WebhookVerification,
    receiver,
    verify_jwt,
)
from parley.security.signing.keys import new_key_set, rotated, write_key_set
from parley.server.run import serving
from tests.fleet.conftest import FleetOf
from tests.fleet.fleet import Replica
from tests.kit.waiting import let_time_pass, until
from tests.push.receiving.delivering import Handled

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.service]

ISSUER = "https://agents.example.com"
BOUND = 90.0


def replace_keys(path: Path, document: Any) -> None:
    """Write a key file as a whole, as ``parley keys rotate`` does."""
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_bytes(write_key_set(document))
    os.replace(new, path)


async def begin(replica: Replica, url: str) -> str:
    """Have a replica begin a task with a webhook that wants JWTs, and return the task's id."""
    push = {"url": url, "authentication": {"scheme": "JWT"}}
    asked = {
        "message": {
            "messageId": url.rpartition("/")[2] + replica.name,
            "role": "ROLE_USER",
            "parts": [{"text": "80 50"}],
            "metadata": {"skill": "report"},
        },
        "configuration": {"returnImmediately": True, "taskPushNotificationConfig": push},
    }
    async with (
        aiohttp.ClientSession(headers={"A2A-Version": "1.0"}) as session,
        session.post(f"{replica.url}/message:send", json=asked) as response,
    ):
        answer = await response.json(content_type=None)
        assert response.status == 200, answer
    return str(answer["task"]["id"])


async def test_every_delivery_is_verified_while_replicas_rotate_their_keys(
    fleet_of: FleetOf, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    replace_keys(path, new_key_set(["ES256"], time.time()))
    handled, refused, apps = Handled(), list[NotificationRefused](), list[Any]()

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await apps[0](scope, receive, send)

    async with (
        asyncio.timeout(BOUND),
        fleet_of(2, signing_keys=str(path), url=ISSUER) as fleet,
        serving(late) as address,
    ):
        first, second = fleet.replicas
        hook = f"{address.rstrip('/')}/hook"
        published = f"{second.url}/.well-known/jwks.json"
        jwt = verify_jwt(issuer=ISSUER, audience=hook, jwks_url=published)
        keys: list[str] = []

        async def noting(request: DeliveredRequest) -> Verified:
            verified = await jwt.check(request)
            header = request.header("authorization").split(" ")[1].split(".")[0]
            keys.append(json.loads(base64.urlsafe_b64decode(header + "=" * 3))["kid"])
            return verified

        apps.append(
            receiver(
                handled,
                verify=WebhookVerification(noting, close=jwt.close),
                acknowledge="after",
                on_refused=refused.append,
            )
        )
        async with apps[0]:
            tasks = [await begin(each, hook) for each in (first, second)]
            await until(lambda: len({each.task_id for each in handled.got}) == 2, 20)
            old = rotated(path.read_bytes(), time.time(), 3600.0)
            replace_keys(path, old.document)
            await until(lambda: keys[-1] in old.signs, 20)
            # The second replica continues alone, with the first replica's webhook.
            await first.end()
            await until(lambda: sum(each.is_final for each in handled.got) == 2, 60)
            await let_time_pass(0.2)
        assert set(keys) == {*old.signs, *old.ended}
        assert [str(each) for each in refused] == []
        for task_id in tasks:
            numbers = [each.number for each in handled.got if each.task_id == task_id]
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(numbers) > 80
