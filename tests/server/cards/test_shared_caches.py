"""No cache gives the card of one caller to another, whatever it may keep by RFC 9111."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Turn
from parley.security import ApiKey, Bearer, anonymous
from parley.server.settings import Settings
from tests.server.cards.shared_cache import SharedCache, ask

pytestmark = pytest.mark.anyio


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


KEYS = {digest("k-ada"): Caller(id="ada"), digest("k-eve"): Caller(id="eve")}
in_header = ApiKey("header", "X-Key", name="header", keys=KEYS)
in_cookie = ApiKey("cookie", "sid", name="cookie", keys=KEYS)
in_query = ApiKey("query", "key", name="query", keys=KEYS)
token = Bearer(lambda text: Caller(id=text) if text in ("ada", "eve") else None)

CALLERS: list[tuple[dict[str, str], str]] = [
    ({"Authorization": "Bearer ada"}, ""),
    ({"Authorization": "Bearer eve"}, ""),
    ({}, ""),
    ({"X-Key": "k-ada"}, ""),
    ({"X-Key": "k-eve"}, ""),
    ({"Cookie": "sid=k-ada"}, ""),
    ({"Cookie": "sid=k-eve"}, ""),
    ({}, "key=k-ada"),
    ({}, "key=k-eve"),
    ({"Authorization": "Bearer wrong"}, ""),
]
GETS = [
    "/",
    "/nothing",
    "/.well-known/agent-card.json",
    "/.well-known/agent.json",
    "/openapi.json",
    "/docs",
    "/extendedAgentCard",
    "/v1/card",
    "/v1/extendedAgentCard",
    "/a2a/cautious/.well-known/agent-card.json",
]
VERSIONS = [{}, {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}]


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


@pytest.mark.parametrize("options", APPS.values(), ids=APPS)
async def test_each_caller_gets_their_own_answer_through_a_cache(options: Any) -> None:
    app = parley.asgi(make_agent(), url="https://agents.example/", **options)
    async with app.lifespan():
        cache = SharedCache(app)
        for target, version, _ in itertools.product(GETS, VERSIONS, range(2)):
            for credentials, query in CALLERS:
                headers = {**credentials, **version}
                where = f"{target}?{query}" if query else target
                through = await cache.ask("GET", where, headers)
                direct = await ask(app, "GET", where, headers)
                said = (target, version, credentials, query)
                assert _without_reference(through) == _without_reference(direct), said
                if "ada" not in str(credentials) + query:
                    assert b"garden" not in through.body, said
        assert cache.hits


def _without_reference(answer: Any) -> Any:
    return answer.status, answer.body


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
        rpc = await ask(app, "POST", "/", headers, json.dumps(call).encode())
        rest = await ask(app, "GET", paths[version], headers)
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
        answer = await ask(app, "GET", path, {"Authorization": "Bearer ada"})
        assert answer.status == 200
        assert "private" in answer.values("cache-control")
        assert {"authorization", "x-key", "cookie"} <= set(answer.values("vary"))
        tag = dict(answer.headers).get("etag")
        if tag:
            headers = {"Authorization": "Bearer ada", "If-None-Match": tag}
            again = await ask(app, "GET", path, headers)
            assert again.status == 304
            assert "private" in again.values("cache-control")
            assert (await ask(app, "GET", path, {"If-None-Match": tag})).status == 401


def test_the_cache_of_these_tests_keeps_what_it_may() -> None:
    """A cache that kept nothing would pass every test above."""
    from tests.server.cards.shared_cache import Answer, _may_store

    def may(request: dict[str, str], **headers: str) -> bool:
        return _may_store("GET", request, Answer(200, list(headers.items()), b""))

    assert may({})
    assert may({"authorization": "x"}, **{"cache-control": "public, max-age=60"})
    assert not may({"authorization": "x"}, **{"cache-control": "max-age=60"})
    assert not may({}, **{"cache-control": "private, max-age=60"})
    assert not may({}, **{"cache-control": "no-store"})
