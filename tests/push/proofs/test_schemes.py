"""Authentication of deliveries, verified by a real receiver."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import pytest

from parley.push.proofs import secrets_in
from parley.security.signing.keys import SigningKeys
from parley.store.protocols.webhooks import PushRecord
from tests.kit.webhooks import Told, Webhook, webhook
from tests.push.proofs.receiving import asking, claims_of, is_signed
from tests.push.pushing import PATIENT, Pushed, gated, of_version, pushing, writer
from tests.security.signing.key_sets import key_set

pytestmark = pytest.mark.anyio

ISSUER = "https://agents.example.com/parley"

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
OTHER = "another-secret-of-thirty-bytes"


def keys(*jwks: dict[str, Any]) -> SigningKeys:
    return SigningKeys.parse(key_set(*jwks))


async def told_of(
    caller: Pushed, hook: Webhook, scheme: str, credentials: str = "", version: str = "1.0"
) -> list[Told]:
    """Return the notifications of a webhook about a task that ends."""
    hook.told.clear()
    context = of_version(caller.context, version)
    await caller.task("go", asking(hook.url, scheme, credentials, id="hook"), context=context)
    await hook.until_over()
    return list(hook.told)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize(
    ("scheme", "credentials", "header", "value"),
    [
        ("Bearer", "abc.def", "authorization", "Bearer abc.def"),
        ("bearer", "abc", "authorization", "bearer abc"),
        ("Basic", "ada:se:cret", "authorization", "Basic YWRhOnNlOmNyZXQ="),
        ("BASIC", "YWRhOnNlOmNyZXQ=", "authorization", "BASIC YWRhOnNlOmNyZXQ="),
        ("ApiKey", "X-API-Key: 7f3a 81", "x-api-key", "7f3a 81"),
        ("apikey", "Authorization: Token 7f3a", "authorization", "Token 7f3a"),
        ("Hawk", "id=1, mac=2", "authorization", "Hawk id=1, mac=2"),
    ],
)
async def test_a_delivery_has_what_the_configuration_says(
    scheme: str, credentials: str, header: str, value: str, version: str
) -> None:
    async with webhook() as hook, pushing(writer(1)) as caller:
        for told in await told_of(caller, hook, scheme, credentials, version):
            assert told.headers["a2a-version"] == version
            assert told.headers[header] == value
            assert header == "authorization" or "authorization" not in told.headers
            assert "webhook-signature" not in told.headers


async def test_every_delivery_has_its_id_and_the_time_of_the_attempt() -> None:
    async with webhook() as hook, pushing(writer(1), retry_policy=PATIENT) as caller:
        times = itertools.count(1_763_861_400)
        caller.host.push.proofs.clock = lambda: next(times) + 0.9
        answers = iter([503, 503])
        hook.answer = lambda told: next(answers, 200)
        task = await caller.task("go", asking(hook.url, "", id="my.hook/ü"))
        await hook.until_over()
        assert [told.headers["webhook-id"] for told in hook.told[:4]] == [
            f"{task.id}/my%2Ehook%2F%C3%BC/{number}" for number in (1, 1, 1, 2)
        ]
        assert [int(told.headers["webhook-timestamp"]) for told in hook.told] == [
            1_763_861_400 + number for number in range(len(hook.told))
        ]
        for told in hook.told:
            assert told.headers["webhook-id"] == told.headers["a2a-notification-id"]
        assert hook.told[0].body == hook.told[1].body == hook.told[2].body


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_signature_is_verified_with_each_secret(version: str) -> None:
    async with webhook() as hook, pushing(writer(2)) as caller:
        credentials = f"{SECRET} {OTHER}"
        for told in await told_of(caller, hook, "HMAC-SHA256", credentials, version):
            assert is_signed(told, b"0123456789abcdef0123456789abcdef")
            assert is_signed(told, OTHER.encode())
            assert not is_signed(told, b"one that nobody gave, which is long")
            assert not is_signed(told._replace(body=told.body + b" "), OTHER.encode())
            assert "authorization" not in told.headers
            assert len(told.headers["webhook-signature"].split(" ")) == 2


async def test_the_secret_of_a_webhook_is_rotated_while_it_is_told() -> None:
    agent, gate = gated()
    async with webhook() as hook, pushing(agent) as caller:
        push = asking(hook.url, "HMAC-SHA256", SECRET, id="hook")
        task = await caller.task("go", push, return_immediately=True)
        await hook.until(lambda told: len(told) >= 2)
        new = asking(hook.url, "HMAC-SHA256", OTHER, id="hook").authentication
        await caller.create(task.id, hook.url, id="hook", authentication=new)
        gate.set()
        await hook.until_over()
        assert is_signed(hook.told[0], secrets_in(SECRET)[0])
        assert is_signed(hook.told[-1], OTHER.encode())
        assert not is_signed(hook.told[-1], secrets_in(SECRET)[0])


async def test_a_bearer_without_a_token_is_a_jwt_where_the_server_signs() -> None:
    signing = keys()
    async with webhook() as hook:
        async with pushing(writer(1), signing_keys=signing, url=ISSUER) as caller:
            for told in await told_of(caller, hook, "Bearer"):
                claims_of(told, signing.published, issuer=ISSUER, audience=hook.url)
        async with pushing(writer(1)) as caller:
            for told in await told_of(caller, hook, "Bearer"):
                assert "authorization" not in told.headers


async def test_the_audience_is_that_of_the_configuration() -> None:
    signing = keys()
    async with webhook() as hook, pushing(writer(1), signing_keys=signing, url=ISSUER) as caller:
        origin = hook.url.removesuffix("/hook")
        url, hook.url = hook.url, f"{hook.url}?secret=1"
        for stated, found in (
            ({}, url), ({"audience": ""}, url), ({"audience": url}, url),
            ({"audience": hook.url}, hook.url), ({"audience": origin}, origin),
            ({"audience": f"{origin}/"}, f"{origin}/"),
        ):  # fmt: skip
            for told in await told_of(caller, hook, "jwt", json.dumps(stated)):
                claims_of(told, signing.published, issuer=ISSUER, audience=found)


async def test_a_direct_reply_is_proved_too() -> None:
    from parley import Agent, Message

    agent = Agent("Direct")

    @agent.skill(replies="message")
    async def say() -> str:
        return "hello"

    signing = keys()
    async with webhook() as hook, pushing(agent, signing_keys=signing, url=ISSUER) as caller:
        reply = await caller.send("go", asking(hook.url, "JWT"))
        assert isinstance(reply, Message)
        await hook.until(lambda told: len(told) == 1)
        claims = claims_of(hook.told[0], signing.published, issuer=ISSUER, audience=hook.url)
        assert "taskId" not in claims
        assert claims["jti"] == reply.message_id


@pytest.mark.parametrize(
    ("scheme", "credentials"),
    [
        ("ApiKey", "7f3a"),
        ("Basic", "opaque"),
        ("JWT", "eyJhbGciOiJub25lIn0.e30."),
        ("OAuth2", "ya29.token"),
    ],
)
async def test_what_was_stored_before_is_sent_as_it_was(scheme: str, credentials: str) -> None:
    """Configurations from before schemes were known keep their authorization header."""
    agent, gate = gated()
    async with webhook() as hook, pushing(agent) as caller:
        task = await caller.task("go", return_immediately=True)
        push = asking(hook.url, scheme, credentials, id="hook")
        await caller.store.put_push(task.id, PushRecord(config=push, version="1.0", revision="1"))
        caller.host.push.watch(task.id)
        gate.set()
        await hook.until_over()
        assert {told.headers["authorization"] for told in hook.told} == {f"{scheme} {credentials}"}
