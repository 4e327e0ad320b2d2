"""API keys, Basic authentication and the failure count, over every binding and version."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

import parley
from parley import Agent, Part, Turn
from parley.client.remote_agent import RemoteAgent
from parley.model.errors import PermissionDeniedError, TooManyRequestsError, UnauthenticatedError
from parley.model.operations import GetTaskRequest
from parley.model.service import Caller
from parley.security import ApiKey, Basic, create_key
from parley.security.api_keys import digest_of
from parley.server.run import serving
from parley.server.settings import Settings
from tests.contract.conftest import SITES, SPEECHES, Serve, Speech, reach
from tests.contract.test_errors import refused, saying
from tests.kit.http import JSON, Response, ask

pytestmark = pytest.mark.anyio

FORWARDED = "x-forwarded-for"

in_header = ApiKey()
in_cookie = ApiKey("cookie", "sid", name="cookie", keys={digest_of("c00kie"): Caller(id="carl")})


def judge(user: str, password: str) -> Caller | None:
    return Caller(id=user) if password == "pass:wörd" else None


in_basic = Basic(judge)
agent = Agent("Keys", security=in_header.with_scopes("read") | in_cookie | in_basic)


@agent.skill(replies="task")
async def whoami(turn: Turn) -> str:
    return f"{turn.caller.issuer}: {turn.caller.id}"


in_query = ApiKey("query", "api_key", keys={digest_of("qu3ry"): Caller(id="quinn")})
queried = Agent("Queried", security=in_query)


@queried.skill(replies="task")
async def asked(turn: Turn) -> str:
    return turn.caller.id


@pytest.fixture(scope="session")
async def addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, agent), caller=None)


@pytest.fixture(scope="session")
async def queries(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, queried), caller=None)


@pytest.fixture(scope="session")
async def limited(serve: Serve) -> Sequence[str]:
    settings = Settings(auth_failures_per_minute=3, trust_proxy=True)
    return await serve(partial(parley.asgi, agent), caller=None, settings=settings)


@asynccontextmanager
async def showing(
    addresses: Sequence[str], speech: Speech, **headers: str
) -> AsyncIterator[RemoteAgent]:
    async with reach(addresses, speech, headers=headers) as remote:
        yield remote


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def stored(addresses: Sequence[str], **given: Any) -> str:
    """Create a key in the store of the servers."""
    store = store_of(addresses)
    return (await create_key(store, **{"owner": "ada", "scopes": ["read"], **given}))[0]


def store_of(addresses: Sequence[str]) -> Any:
    app: Any = SITES[addresses[0]].app
    return app.identify.resources.store


async def test_a_stored_key_in_a_header_lets_its_owner_in(
    addresses: Sequence[str], speech: Speech
) -> None:
    key = await stored(addresses)
    async with showing(addresses, speech, **{"X-API-Key": key}) as remote:
        task = await remote.send("who am I")
        assert task.text == "apiKey: ada"
        assert (await remote.get(task.id)).id == task.id


async def test_a_key_without_the_scope_is_not_enough(
    addresses: Sequence[str], speech: Speech
) -> None:
    key = await stored(addresses, scopes=["write"])
    async with showing(addresses, speech, **{"X-API-Key": key}) as remote:
        error = await refused(remote, "SendMessage", saying(Part(text="hi")))
        assert type(error) is PermissionDeniedError


@pytest.mark.parametrize("kind", ["unknown", "malformed", "revoked", "expired", "empty"])
async def test_other_keys_let_nobody_in(
    addresses: Sequence[str], speech: Speech, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = store_of(addresses)
    key, record = await create_key(store, owner="ada", scopes=["read"])
    if kind == "unknown":
        key = f"parley_{record.id}_{'x' * 49}"
    elif kind in ("malformed", "empty"):
        key = key[:-1] if kind == "malformed" else " "
    elif kind == "revoked":
        await store.end_api_key(record.id, revoked_at=store.now())
    else:
        await store.end_api_key(record.id, expires_at=store.now())
    async with showing(addresses, speech, **{"X-API-Key": key}) as remote:
        for name, request in (
            ("SendMessage", saying(Part(text="hi"))),
            ("SendStreamingMessage", saying(Part(text="hi"))),
            ("GetTask", GetTaskRequest(id="any")),
        ):
            error = await refused(remote, name, request)
            assert type(error) is UnauthenticatedError
            assert key[-40:] not in str(error) or kind == "empty"
    assert key[-40:] not in caplog.text or kind == "empty"


async def test_a_cookie_lets_its_caller_in(
    addresses: Sequence[str], speech: Speech, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    # gRPC has no cookies: a client sends them as metadata with that name.
    async with showing(addresses, speech, cookie="theme=dark; sid=c00kie") as remote:
        assert (await remote.send("who am I")).text == "cookie: carl"
    async with showing(addresses, speech, cookie="sid=0ther") as remote:
        error = await refused(remote, "SendMessage", saying(Part(text="hi")))
        assert type(error) is UnauthenticatedError
    assert "c00kie" not in caplog.text
    assert "0ther" not in caplog.text + str(error)


async def test_user_and_password_let_the_user_in(addresses: Sequence[str], speech: Speech) -> None:
    async with showing(addresses, speech, authorization=basic("ada", "pass:wörd")) as remote:
        assert (await remote.send("who am I")).text == "basic: ada"
    async with showing(addresses, speech, authorization=basic("ada", "s3cret")) as remote:
        error = await refused(remote, "SendMessage", saying(Part(text="hi")))
        assert type(error) is UnauthenticatedError
        assert "s3cret" not in str(error)


async def test_who_fails_too_often_is_told_to_wait_and_others_are_not(
    limited: Sequence[str], speech: Speech
) -> None:
    # Each way has its own address and user; a trusted proxy names the address.
    number = [Speech(*each) for each in SPEECHES].index(speech)
    user, mine = f"user{number}", f"198.51.100.{number}"
    one, request = limited[:1], saying(Part(text="hi"))
    wrong, right = basic(user, "wrong"), basic(user, "pass:wörd")
    async with showing(one, speech, authorization=wrong, **{FORWARDED: mine}) as remote:
        for _ in range(3):
            assert type(await refused(remote, "SendMessage", request)) is UnauthenticatedError
        error = await refused(remote, "SendMessage", request)
        assert type(error) is TooManyRequestsError
        assert error.retry_after is None or 0 < error.retry_after <= 20
    async with showing(one, speech, authorization=right, **{FORWARDED: mine}) as remote:
        assert type(await refused(remote, "SendMessage", request)) is TooManyRequestsError
    elsewhere = f"{mine}, 203.0.113.7"
    async with showing(one, speech, authorization=right, **{FORWARDED: elsewhere}) as remote:
        assert (await remote.send("who am I")).text == f"basic: {user}"


@pytest.mark.slow
async def test_a_key_in_the_query_lets_its_caller_in_over_http(queries: Sequence[str]) -> None:
    for url in queries:
        told = rpc("SendMessage", {"message": HELLO})
        for target in ("/?api_key=qu3ry", "/?a2a-version=1.0&api_key=qu3ry"):
            response = await post(url, target, told)
            task = json.loads(response.body)["result"]["task"]
            assert task["artifacts"][0]["parts"] == [{"text": "quinn"}]
        response = await post(url, "/message:send?api_key=qu3ry", {"message": HELLO})
        assert response.status == 200
        response = await post(url, "/tasks?pageSize=1&api_key=qu3ry", None)
        assert response.status == 200
        for target in ("/", "/?api_key=s3cret", "/?API_KEY=qu3ry", "/?api_key=qu3ry&api_key=qu3ry"):
            response = await post(url, target, told)
            assert b"s3cret" not in response.body
            assert json.loads(response.body)["error"]["data"][0]["reason"] == "UNAUTHENTICATED"
        response = await post(url, "/tasks?api_key=s3cret", None)
        assert response.status == 401
        assert response.headers["www-authenticate"] == (
            'ApiKey in="query", name="api_key", error="invalid_token"'
        )
        assert b"s3cret" not in response.body


async def test_grpc_has_no_query_so_a_key_that_belongs_there_cannot_be_sent(
    queries: Sequence[str],
) -> None:
    metadata = {"api_key": "qu3ry"}
    async with reach(queries, Speech("GRPC", "1.0"), headers=metadata) as remote:
        error = await refused(remote, "SendMessage", saying(Part(text="hi")))
        assert type(error) is UnauthenticatedError


HELLO = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}


def rpc(method: str, params: Any) -> Any:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def post(url: str, target: str, body: Any) -> Response:
    data = b"" if body is None else json.dumps(body).encode()
    return await ask(url, "GET" if body is None else "POST", target, data, JSON)


@pytest.mark.parametrize("is_keyed", [True, False])
async def test_pages_of_other_origins_may_send_the_header_of_a_key(is_keyed: bool) -> None:
    app = parley.asgi(
        agent, auth=None if is_keyed else False, settings=Settings(cors_origins=("https://a.test",))
    )
    asking = {
        "Origin": "https://a.test",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-api-key",
    }
    async with serving(app) as url:
        response = await ask(url, "OPTIONS", "/", b"", asking)
    allowed = response.headers.get("access-control-allow-headers", "").lower()
    assert ("x-api-key" in allowed) is is_keyed
