"""What our sender delivers, our receiver verifies and hands over: by each scheme and version."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from parley import Task
from parley.push import (
    PushNotification,
    receiver,
    verify_api_key,
    verify_basic,
    verify_bearer,
    verify_hmac,
    verify_jwt,
    verify_token,
)
from parley.security.signing.keys import SigningKeys
from parley.server.run import serving
from tests.kit.waiting import until
from tests.kit.webhooks import Webhook, webhook
from tests.push.proofs.receiving import asking
from tests.push.pushing import PATIENT, of_version, pushing, writer
from tests.push.receiving.delivering import SECRET, Handled
from tests.security.signing.key_sets import key_set, private_jwk

pytestmark = pytest.mark.anyio

KEYS = SigningKeys.parse(key_set(private_jwk(kid="one")))


def jwt(url: str, issuer: str) -> Any:
    return verify_jwt(issuer=issuer, audience=url)


SCHEMES: list[tuple[str, str, Callable[[str, str], Any], str]] = [
    ("HMAC-SHA256", SECRET, lambda url, issuer: verify_hmac(SECRET), "HMAC-SHA256"),
    ("Bearer", "t0ken", lambda url, issuer: verify_bearer("t0ken"), "Bearer"),
    ("Basic", "ada:s:crt", lambda url, issuer: verify_basic("ada", "s:crt"), "Basic"),
    ("ApiKey", "X-Key: k 1", lambda url, issuer: verify_api_key("X-Key", "k 1"), "ApiKey"),
    ("JWT", "", jwt, "JWT"),
]


def publishing(keys: Webhook, signing: SigningKeys) -> str:
    """Have a server publish keys, and return its address."""
    keys.answer = lambda told: web.json_response(signing.published)
    return keys.url.removesuffix("/hook")


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize(("scheme", "credentials", "verify", "by"), SCHEMES)
async def test_what_is_delivered_is_verified_and_typed(
    scheme: str, credentials: str, verify: Any, by: str, version: str
) -> None:
    handled, apps = Handled(), list[Any]()
    async with webhook() as keys, serving(late_app(apps)) as url:
        hook = url.rstrip("/") + "/hook"
        issuer = publishing(keys, KEYS)
        apps.append(receiver(handled, verify=[verify(hook, issuer), verify_token("t")]))
        options = {"signing_keys": KEYS, "url": issuer} if scheme == "JWT" else {}
        async with apps[0], pushing(writer(3), retry_policy=PATIENT, **options) as caller:
            asked = asking(hook, scheme, credentials, id="hook", token="t")
            task = await caller.task("go", asked, context=of_version(caller.context, version))
            await until(lambda: handled.got and handled.got[-1].is_final)
        assert {each.verified_by for each in handled.got} == {f"{by} + token"}
        assert {each.version for each in handled.got} == {version}
        numbers = [each.number for each in handled.got]
        assert numbers == sorted(set(numbers))  # type: ignore[type-var]
        assert {each.task_id for each in handled.got} == {task.id}
        if version == "0.3":
            assert {type(each.event) for each in handled.got} == {Task}


def late_app(apps: list[Any]) -> Any:
    """Return an app that is known only once its address is."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await apps[0](scope, receive, send)

    return app


async def test_a_sender_comes_again_until_the_handler_has_done_it() -> None:
    failures = itertools.chain(
        [RuntimeError("one"), None, RuntimeError("two")], itertools.repeat(None)
    )
    got: list[PushNotification] = []

    async def handle(notification: PushNotification) -> None:
        if (failure := next(failures)) is not None:
            raise failure
        got.append(notification)

    app = receiver(handle, verify=verify_hmac(SECRET), acknowledge="after")
    async with serving(app) as url, pushing(writer(5), retry_policy=PATIENT) as caller:
        await caller.task("go", asking(url, "HMAC-SHA256", SECRET, id="hook"))
        await until(lambda: got and got[-1].is_final)
    assert [each.number for each in got] == list(range(1, len(got) + 1))


async def test_keys_that_rotate_are_followed() -> None:
    """A receiver that knows the old key meets the new one, and fetches the set again."""
    handled, apps = Handled(), list[Any]()
    old = private_jwk(kid="old")
    new = private_jwk(kid="new")
    async with webhook() as keys, serving(late_app(apps)) as url:
        issuer = publishing(keys, SigningKeys.parse(key_set(old)))
        apps.append(receiver(handled, verify=jwt(url, issuer)))
        async with apps[0]:
            for each in (old, new):
                signing = SigningKeys.parse(key_set(each))
                publishing(keys, signing)
                options: dict[str, Any] = {"signing_keys": signing, "url": issuer}
                async with pushing(writer(1), retry_policy=PATIENT, **options) as caller:
                    seen = len(handled.got)
                    await caller.task("go", asking(url, "JWT"))
                    await until(lambda n=seen: len(handled.got) > n and handled.got[-1].is_final)
        assert len(keys.told) == 2


def test_the_secret_of_these_tests_is_standard() -> None:
    assert base64.b64decode(SECRET.removeprefix("whsec_")) == b"0123456789abcdef0123456789abcdef"
