"""Configurations with impossible or too powerful proofs are rejected at creation."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from parley.model.errors import InvalidParamsError
from parley.push.proofs import Proofs, may_be_plain, validated
from parley.security.egress import Egress
from parley.security.signing.keys import SigningKeys
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.webhooks import PushState
from tests.kit.webhooks import webhook
from tests.push.proofs.receiving import asking, claims_of
from tests.push.pushing import gated, pushing
from tests.security.signing.key_sets import key_set

pytestmark = pytest.mark.anyio

URL = "https://hooks.example.com/tenants/7"
S = "s3cr3t"
"""Part of every secret; no error message may contain it."""

CREDENTIALS = "authentication.credentials"


def client(**members: Any) -> str:
    given = {"tokenUrl": "https://id.example.com/token", "clientId": "a", "clientSecret": S}
    return json.dumps({k: v for k, v in {**given, **members}.items() if v is not None})


@pytest.mark.parametrize(
    ("scheme", "credentials", "field"),
    [
        ("Basic", "", CREDENTIALS),
        ("Basic", f"ada-{S}", CREDENTIALS),
        ("Basic", "YWRhLXMzY3IzdA==", CREDENTIALS),
        ("ApiKey", "", CREDENTIALS),
        ("ApiKey", S, CREDENTIALS),
        ("ApiKey", f"X-API-Key:{S}", CREDENTIALS),
        ("ApiKey", f"X API Key: {S}", CREDENTIALS),
        ("ApiKey", f": {S}", CREDENTIALS),
        ("ApiKey", f"X-API-Key: {S}\r\nHost: evil", CREDENTIALS),
        ("ApiKey", f"X-API-Key: {S}\x85", CREDENTIALS),
        ("HMAC-SHA256", "", CREDENTIALS),
        ("HMAC-SHA256", f"{S}-too-short", CREDENTIALS),
        ("HMAC-SHA256", f"whsec_{S}!!!", CREDENTIALS),
        ("HMAC-SHA256", "whsec_c2hvcnQ=", CREDENTIALS),
        ("HMAC-SHA256", f"{S * 5}  {S * 6}", CREDENTIALS),
        ("HMAC-SHA256", " ".join([S * 5] * 6), CREDENTIALS),
        ("OAuth2", "", CREDENTIALS),
        ("OAuth2", S, CREDENTIALS),
        ("OAuth2", f'["{S}"]', CREDENTIALS),
        ("OAuth2", client(tokenUrl=None), f"{CREDENTIALS}.tokenUrl"),
        ("OAuth2", client(clientId=""), f"{CREDENTIALS}.clientId"),
        ("OAuth2", client(clientSecret=7), f"{CREDENTIALS}.clientSecret"),
        ("OAuth2", client(clientSecret=f"{S}\n"), f"{CREDENTIALS}.clientSecret"),
        ("OAuth2", client(scope=[S]), f"{CREDENTIALS}.scope"),
        ("OAuth2", client(authMethod="none"), f"{CREDENTIALS}.authMethod"),
        ("OAuth2", client(password=S), CREDENTIALS),
        ("OAuth2", client(tokenUrl="http://id.example.com/token"), f"{CREDENTIALS}.tokenUrl"),
        ("OAuth2", client(tokenUrl="https://127.0.0.1/token"), f"{CREDENTIALS}.tokenUrl"),
        ("OAuth2", client(tokenUrl="https://metadata.internal"), f"{CREDENTIALS}.tokenUrl"),
        ("OAuth2", client(tokenUrl="https://a:b@id.example.com"), f"{CREDENTIALS}.tokenUrl"),
        ("OAuth2", client(tokenUrl="https://id.example.com/#a"), f"{CREDENTIALS}.tokenUrl"),
        ("OAuth2", client(tokenUrl="file:///etc/passwd"), f"{CREDENTIALS}.tokenUrl"),
        ("JWT", S, CREDENTIALS),
        ("JWT", f'{{"key": "{S}"}}', CREDENTIALS),
        ("JWT", '{"audience": 7}', CREDENTIALS),
        ("MutualTLS", S, CREDENTIALS),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_repeated(
    scheme: str, credentials: str, field: str
) -> None:
    keys = SigningKeys.parse(key_set())
    proofs = Proofs(Egress(), keys=keys, issuer="https://agents.example.com")
    with pytest.raises(InvalidParamsError) as refused:
        validated(
            asking(URL, scheme, credentials), Egress(), version="1.0", at="push.", proofs=proofs
        )
    named = [each.field for each in refused.value.violations]
    assert f"push.{field}" in named
    assert S not in refused.value.message
    assert "YWRh" not in refused.value.message
    assert refused.value.__cause__ is None or S not in str(refused.value.__cause__)


@pytest.mark.parametrize(
    ("scheme", "credentials"),
    [("Bearer", "x"), ("Basic", "a:b"), ("ApiKey", "X-Key: 1"), ("OAuth2", client())],
)
def test_a_secret_goes_over_plain_http_only_where_the_operator_allows(
    scheme: str, credentials: str
) -> None:
    url = "http://hooks.example.com/a2a"
    with pytest.raises(InvalidParamsError, match="sends a secret") as refused:
        validated(asking(url, scheme, credentials), Egress(private=True), version="1.0")
    assert [each.field for each in refused.value.violations] == ["url"]
    named = Egress.allowing(["hooks.example.com"])
    assert validated(asking(url, scheme, credentials), named, version="1.0")
    assert validated(asking(url, "HMAC-SHA256", "x" * 24), Egress(), version="1.0")
    assert validated(asking(url, "Hawk", "x"), Egress(), version="1.0")
    assert validated(asking(url, ""), Egress(), version="1.0")


@pytest.mark.parametrize(
    ("host", "allowed", "expected"),
    [
        ("127.0.0.1", True, True),
        ("10.1.2.3", True, True),
        ("localhost", True, True),
        ("hooks.internal", True, True),
        ("::1", True, True),
        ("8.8.8.8", True, False),
        ("example.com", True, False),
        ("169.254.169.254", True, False),
        ("127.0.0.1", False, False),
        ("localhost", False, False),
        ("10.1.2.3", ["10.1.0.0/16"], True),
        ("10.2.2.3", ["10.1.0.0/16"], False),
        ("EXAMPLE.com.", ["example.com"], True),
        ("example.com.evil.com", ["example.com"], False),
    ],
)
def test_plain_http_is_for_hosts_that_the_operator_allows(
    host: str, allowed: Any, expected: bool
) -> None:
    assert may_be_plain(host, Egress.allowing(allowed)) is expected


async def test_a_jwt_needs_keys_and_an_address() -> None:
    agent, _ = gated()
    keys = SigningKeys.parse(key_set())
    for options, told in (
        ({"url": "https://agents.example.com"}, "parley keys generate"),
        ({"signing_keys": keys}, "url="),
    ):
        async with pushing(agent, **options) as caller:
            with pytest.raises(InvalidParamsError, match=told) as refused:
                await caller.send("go", asking(URL, "JWT"))
            [violation] = refused.value.violations
            assert violation.field.endswith(".authentication.scheme")


async def test_a_jwt_whose_keys_are_gone_is_not_sent_without() -> None:
    """After a restart without its keys, a server sends no delivery without a proof."""
    agent, gate = gated()
    store = MemoryTaskStore()
    keys = SigningKeys.parse(key_set())
    async with webhook() as hook:
        url = "https://agents.example.com"
        async with pushing(agent, store, signing_keys=keys, url=url) as caller:
            task = await caller.task("go", asking(hook.url, "JWT"), return_immediately=True)
            await hook.until(lambda told: len(told) >= 2)
            caller.host.push.proofs._keys = None
            count = len(hook.told)
            gate.set()
            push = await caller.settled(task.id, PushState.SUSPENDED)
            assert "no signing keys" in push.note
            assert len(hook.told) == count


async def test_a_jwt_that_one_receiver_captures_verifies_at_no_other() -> None:
    """Mallory's webhook, with any audience that she may set, sends to Ada's receiver."""
    agent, gate = gated()
    gate.set()
    keys = SigningKeys.parse(key_set())
    issuer = "https://agents.example.com"
    async with (
        webhook() as ada,
        webhook() as mallory,
        pushing(agent, signing_keys=keys, url=issuer) as caller,
    ):
        here = mallory.url.removesuffix("/hook")
        mine = ada.url.removesuffix("/hook")
        for stated in ("", here, f"{here}/", mallory.url):
            mallory.told.clear()
            credentials = json.dumps({"audience": stated})
            await caller.task("go", asking(mallory.url, "JWT", credentials))
            await mallory.until_over()
            for told in mallory.told:
                for expected in (ada.url, mine, f"{mine}/"):
                    with pytest.raises(Exception, match="aud"):
                        claims_of(told, keys.published, issuer=issuer, audience=expected)
        for stated in (ada.url, mine):
            credentials = json.dumps({"audience": stated})
            with pytest.raises(InvalidParamsError):
                await caller.task("go", asking(mallory.url, "JWT", credentials))
        # At the same host, receivers distinguish each other by the whole URL.
        mallory.told.clear()
        await caller.task("go", asking(f"{mine}/mallory", "JWT"))
        await ada.until_over()
        with pytest.raises(Exception, match="aud"):
            claims_of(ada.told[0], keys.published, issuer=issuer, audience=ada.url)


@pytest.mark.slow
async def test_no_secret_reaches_the_log_an_answer_or_another_origin(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from aiohttp import web

    caplog.set_level(logging.DEBUG)
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, webhook() as other, pushing(agent) as caller:
        elsewhere = web.Response(status=307, headers={"Location": other.url})
        hook.answer = lambda told: elsewhere
        for number, (scheme, credentials) in enumerate(
            [
                ("Bearer", f"{S}-bearer"),
                ("Basic", f"ada:{S}-basic"),
                ("ApiKey", f"X-Key: {S}-key"),
                ("HMAC-SHA256", f"{S}-hmac-of-enough-bytes"),
                ("OAuth2", client(tokenUrl=other.url)),
                ("Hawk", f"{S}-hawk"),
            ]
        ):
            elsewhere = web.Response(status=307, headers={"Location": other.url})
            task = await caller.task("go", asking(hook.url, scheme, credentials, id="hook"))
            push = await caller.settled(task.id, PushState.SUSPENDED, "hook")
            assert S not in push.note, number
            assert S not in repr(push)
            assert S not in repr(await caller.get(task.id, "hook"))
        for told in other.told:  # the token endpoint; redirects are not followed
            assert told.headers["content-type"] == "application/x-www-form-urlencoded"
    assert S not in caplog.text
    assert "YWRh" not in caplog.text
