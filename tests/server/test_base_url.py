"""The service is told the agent's address as the sender of a message sees it."""

from __future__ import annotations

import json

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from parley.server.app import App, Endpoint, Settings, create_app
from parley.server.run import serving
from tests.kit.http import MESSAGE, ask, call, post
from tests.kit.scripted import Scripted, app_of, card_of

pytestmark = pytest.mark.anyio

STREAMED = call("SendStreamingMessage")
OVER_HTTP = json.dumps({"message": MESSAGE}).encode()
OLD = {"Content-Type": "application/json", "A2A-Version": "0.3"}
OLD_MESSAGE = {"messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": "Hi"}]}
A2A_JSON = {"Content-Type": "application/a2a+json", "A2A-Version": "1.0"}

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


@pytest.mark.parametrize(
    ("path", "tenant", "expected"),
    [
        ("/", "", ""),
        ("/", "acme", "/acme"),
        ("/acme", "", "/acme"),
        ("/acme/", "acme", "/acme"),
        ("/", "unlisted", ""),
        ("/x/y", "", "/x/y"),
        ("/x/y/", "", "/x/y"),
        ("/x/y", "anyone", "/x/y"),
        ("/a2a/acme", "", "/a2a/acme"),
        ("/a2a/root", "", "/a2a/root"),
        ("/a2a/x-y", "", "/a2a/x-y"),
        ("/a2a/x/", "", "/a2a/x"),
    ],
)
async def test_the_address_is_that_of_the_agent_that_a_message_was_sent_to(
    path: str, tenant: str, expected: str
) -> None:
    params = {"message": MESSAGE, **({"tenant": tenant} if tenant else {})}
    async with serving(several()) as url:
        for method in ("SendMessage", "SendStreamingMessage"):
            await post(url, call(method, params), path=path)
            assert told() == url + expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/message:send", ""),
        ("/message:stream", ""),
        ("/acme/message:send", "/acme"),
        ("/elsewhere/message:send", ""),
        ("/x/y/message:send", "/x/y"),
        ("/x/y/anyone/message:send", "/x/y"),
        ("/a2a/acme/message:send", "/a2a/acme"),
        ("/a2a/x-y/message:send", "/a2a/x-y"),
    ],
)
async def test_it_is_the_same_over_http_json(path: str, expected: str) -> None:
    async with serving(several()) as url:
        await ask(url, "POST", path, OVER_HTTP, A2A_JSON)
        assert told() == url + expected


async def test_it_is_the_same_in_version_0_3() -> None:
    async with serving(several()) as url:
        body = call("message/send", {"message": {"kind": "message", **OLD_MESSAGE}})
        await ask(url, "POST", "/x/y", body, OLD)
        assert told() == f"{url}/x/y"
        sent = {"messageId": "m-1", "role": "ROLE_USER", "content": [{"text": "Hi"}]}
        await ask(url, "POST", "/acme/v1/message:send", json.dumps({"message": sent}).encode(), OLD)
        assert told() == f"{url}/acme"


async def test_it_has_the_prefix_that_the_app_is_mounted_at() -> None:
    app = several()
    outer = Starlette(routes=[Mount("/agents", app=app)], lifespan=app.lifespan)
    async with serving(outer) as url:
        for path, expected in (("/", ""), ("/acme", "/acme"), ("/x/y", "/x/y")):
            await post(url, call(), path=f"/agents{path}")
            assert told() == f"{url}/agents{expected}"


async def test_it_is_the_address_that_a_trusted_proxy_states() -> None:
    headers = {
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "Agents.example",
        "X-Forwarded-Prefix": "/public/",
    }
    async with serving(app_of(service, settings=Settings(trust_proxy=True))) as url:
        await post(url, call(), headers)
        assert told() == "https://agents.example/public"
    async with serving(app_of(service)) as url:
        await post(url, call(), headers)
        assert told() == url


async def test_it_is_the_address_that_is_configured() -> None:
    app = create_app({"/x": endpoint()}, url="https://agents.example/all/")
    async with serving(app) as url:
        await post(url, call(), path="/x")
        assert told() == "https://agents.example/all/x"


async def test_requests_to_several_hosts_are_each_told_theirs() -> None:
    settings = Settings(allowed_hosts=("*",))
    async with serving(app_of(service, settings=settings)) as url:
        for _ in range(2):
            for host in ("one.example", "two.example:8443", "ONE.example"):
                await post(url, call(), {"Host": host})
                assert told() == f"http://{host.lower()}"


async def test_a_request_whose_host_is_none_is_answered_without_an_address() -> None:
    settings = Settings(allowed_hosts=("*",))
    async with serving(app_of(service, settings=settings)) as url:
        answer = await post(url, call(), {"Host": "no host/at all"})
        assert "result" in answer.json
        assert told() == ""


async def test_only_messages_have_it() -> None:
    async with serving(app_of(service)) as url:
        await post(url, call("GetTask"))
        assert told() == ""
        await post(url, STREAMED)
        assert told() == url
