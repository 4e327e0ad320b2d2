"""The service gets the agent's address from the sender's view."""

from __future__ import annotations

import json

import pytest

from parley.server.app import App, Endpoint, create_app
from parley.server.run import serving
from tests.kit.http import ask, call
from tests.kit.scripted import Scripted, card_of

pytestmark = pytest.mark.anyio

OLD = {"Content-Type": "application/json", "A2A-Version": "0.3"}
OLD_MESSAGE = {"messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": "Hi"}]}

service = Scripted()


@pytest.fixture(autouse=True)
def forget() -> None:
    service.forget()


def endpoint(name: str = "Told", **options: object) -> Endpoint:
    return Endpoint(service, card_of(name), **options)


def several() -> App:
    tenants = {"acme": endpoint("Acme")}
    return create_app({"": endpoint(tenants=tenants, key="root"), "/x/y": endpoint("X", key="x")})


def told() -> str:
    return service.context.base_url


async def test_it_is_the_same_in_version_0_3() -> None:
    async with serving(several()) as url:
        body = call("message/send", {"message": {"kind": "message", **OLD_MESSAGE}})
        await ask(url, "POST", "/x/y", body, OLD)
        assert told() == f"{url}/x/y"
        sent = {"messageId": "m-1", "role": "ROLE_USER", "content": [{"text": "Hi"}]}
        await ask(url, "POST", "/acme/v1/message:send", json.dumps({"message": sent}).encode(), OLD)
        assert told() == f"{url}/acme"
