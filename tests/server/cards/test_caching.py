"""Forms of one card, and their cache headers."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

import parley
from parley import Agent, Caller, Turn
from parley.model.cards import AgentCard, AgentCardSignature
from parley.model.operations import (
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from parley.security import ApiKey, Bearer, anonymous
from parley.server.app import Endpoint, Settings, create_app
from parley.server.run import serving
from tests.kit.http import ask, call
from tests.kit.scripted import Scripted, app_of, card_of
from tests.server.cards.shared_cache import ask as shared_caches_ask

pytestmark = pytest.mark.anyio


CARD = "/.well-known/agent-card.json"


async def _config(request, context):
    return TaskPushNotificationConfig(id="p-1", task_id=request.task_id, url="https://h.example")


async def _configs(request, context):
    return ListTaskPushNotificationConfigsResponse()


async def _extended_card(request, context):
    return card_of("Extended", extended_agent_card=True)(())


SCRIPT = {
    "create_task_push_notification_config": _config,
    "get_task_push_notification_config": _config,
    "list_task_push_notification_configs": _configs,
    "get_extended_agent_card": _extended_card,
}


@pytest.fixture(scope="module")
async def whole():
    service = Scripted(**SCRIPT)
    card = card_of(push_notifications=True, extended_agent_card=True)
    settings = Settings(max_body_bytes=2000)
    async with serving(app_of(service, card=card, settings=settings)) as url:
        yield service, url


REFUSED = [
    ("POST", "/", b"{", {}),
    ("POST", "/", b" " * 3000, {}),
    ("POST", "/", call("Nothing"), {}),
    ("POST", "/", call(id=...), {}),
    ("POST", "/", call("GetTask"), {"A2A-Version": "9"}),
    ("POST", "/", call("tasks/get"), {"A2A-Version": "0.3"}),
    ("POST", "/", call(), {"Content-Type": "text/plain"}),
    ("GET", "/tasks/t-1/nothing", b"", {}),
    ("PUT", "/tasks/t-1", b"", {}),
    ("GET", "/tasks?pageSize=many", b"", {}),
    ("GET", "/tasks/t-1", b"", {"A2A-Version": "9"}),
    ("GET", "/v1/tasks/t-1", b"", {"A2A-Version": "0.3"}),
    ("POST", "/message:send", b"{", {}),
    ("POST", "/message:send", b" " * 3000, {}),
]


@pytest.mark.parametrize(("method", "path", "body", "headers"), REFUSED)
async def test_no_refusal_may_be_kept(whole, method, path, body, headers):
    given = {"A2A-Version": "1.0", "Content-Type": "application/json", **headers}
    response = await ask(whole[1], method, path, body, given)
    assert response.headers["cache-control"] == "no-store"


async def test_a_process_without_agents_lets_nothing_be_kept():
    app = create_app({}, unavailable_message="nobody is here")
    async with serving(app) as url:
        for method, path, body in (("GET", "/tasks/t-1", b""), ("POST", "/", call())):
            response = await ask(url, method, path, body)
            assert (response.status, response.headers["cache-control"]) == (503, "no-store")


# -- no cache serves a caller's card to another caller, whatever RFC 9111 lets it store ------------


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


KEYS = {digest("k-ada"): Caller(id="ada"), digest("k-eve"): Caller(id="eve")}
in_header = ApiKey("header", "X-Key", name="header", keys=KEYS)
in_cookie = ApiKey("cookie", "sid", name="cookie", keys=KEYS)
in_query = ApiKey("query", "key", name="query", keys=KEYS)
token = Bearer(lambda text: Caller(id=text) if text in ("ada", "eve") else None)


def make_agent() -> Agent:
    agent = Agent("Cautious", security=token | in_header | in_cookie | in_query | anonymous)

    @agent.skill
    async def hello(turn: Turn) -> str:
        return "hello"

    @agent.skill(listed=lambda caller: caller.id == "ada")
    async def garden(turn: Turn) -> str:
        return "roses"

    @agent.extended_card
    def extended(caller: Caller) -> dict[str, Any]:
        return {"description": f"the card of {caller.id}"}

    return agent


AUTHENTICATED = {"card": "authenticated", "docs": "authenticated"}


def settings(**restrict: Any) -> dict[str, Any]:
    return {"settings": Settings(restrict=restrict, auth_failures_per_minute=0)}


APPS = {
    "open": settings(),
    "restricted": settings(**AUTHENTICATED),
    "by network": settings(card=["192.0.2.0/24"]),
}


RPC = {"1.0": ("GetExtendedAgentCard", {}), "0.3": ("agent/getAuthenticatedExtendedCard", {})}


@pytest.mark.parametrize("version", RPC)
async def test_an_extended_card_says_that_it_is_for_one_caller(version: str) -> None:
    app = parley.asgi(make_agent(), url="https://agents.example/")
    method, params = RPC[version]
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": method,
        **({} if params is None else {"params": {}}),
    }
    paths = {"1.0": "/extendedAgentCard", "0.3": "/v1/card"}
    headers = {
        "Authorization": "Bearer ada",
        "A2A-Version": version,
        "Content-Type": "application/json",
    }
    async with app.lifespan():
        rpc = await shared_caches_ask(app, "POST", "/", headers, json.dumps(call).encode())
        rest = await shared_caches_ask(app, "GET", paths[version], headers)
    for answer in (rpc, rest):
        assert answer.status == 200
        assert b"the card of ada" in answer.body
        assert b"garden" in answer.body
        assert answer.values("cache-control") == ["no-store"]
        assert {"authorization", "x-key", "cookie", "a2a-version"} <= set(answer.values("vary"))


@pytest.mark.parametrize("path", ["/.well-known/agent-card.json", "/openapi.json"])
async def test_what_only_some_may_see_is_private(path: str) -> None:
    app = parley.asgi(make_agent(), url="https://agents.example/", **APPS["restricted"])
    async with app.lifespan():
        answer = await shared_caches_ask(app, "GET", path, {"Authorization": "Bearer ada"})
        assert answer.status == 200
        assert "private" in answer.values("cache-control")
        assert {"authorization", "x-key", "cookie"} <= set(answer.values("vary"))
        tag = dict(answer.headers).get("etag")
        if tag:
            headers = {"Authorization": "Bearer ada", "If-None-Match": tag}
            again = await shared_caches_ask(app, "GET", path, headers)
            assert again.status == 304
            assert "private" in again.values("cache-control")
            assert (await shared_caches_ask(app, "GET", path, {"If-None-Match": tag})).status == 401


# -- one agent card in several forms: for all versions at once, or for exactly one -----------------


OLD = {"url", "preferredTransport", "protocolVersion"}
EXACT = {member for member in AgentCard.__struct_encode_fields__}


def form_of(card):
    """Return the form of a card, determined by its members."""
    members = set(card)
    if members >= OLD:
        return "merged" if "supportedInterfaces" in members else "0.3"
    return "1.0" if members <= EXACT and "supportedInterfaces" in members else "neither"


def signed(interfaces):
    signature = AgentCardSignature(protected="eyJhbGciOiJFUzI1NiJ9", signature="c2lnbmVk")
    return msgspec.structs.replace(card_of()(interfaces), signatures=(signature,))


async def test_nothing_is_put_into_a_card_that_was_signed():
    async with serving(create_app({"": Endpoint(Scripted(), signed)})) as url:
        plain = await ask(url, "GET", CARD)
        exact = await ask(url, "GET", CARD, headers={"A2A-Version": "1.0"})
        assert plain.body == exact.body
        assert form_of(plain.json) == "1.0"
        assert plain.json["signatures"]
        # The signature does not cover the card of another version.
        old = await ask(url, "GET", CARD, headers={"A2A-Version": "0.3"})
        assert form_of(old.json) == "0.3"
        assert "signatures" not in old.json
