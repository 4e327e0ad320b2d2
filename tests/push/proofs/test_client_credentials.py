"""Access tokens that the server obtains for webhooks."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from parley import Caller, Task
from parley.push.proofs import ClientToken, Proofs
from parley.security.egress import Egress
from parley.store.protocols.webhooks import PushState
from tests.kit.waiting import Clock, let_time_pass, until
from tests.kit.webhooks import webhook
from tests.push.proofs.receiving import asking, token_endpoint
from tests.push.pushing import PATIENT, gated, pushing, writer

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t-of-client"


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry a token endpoint without a pause."""
    monkeypatch.setattr("parley.push.proofs.PAUSE", 0.0)
    monkeypatch.setattr("parley.push.proofs.PAUSE_AFTER_REFUSAL", 0.0)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_token_is_obtained_once_for_many_deliveries(method: str, version: str) -> None:
    async with token_endpoint() as endpoint, webhook() as hook, pushing(writer(20)) as caller:
        credentials = endpoint.credentials(
            scope="hooks a", audience="https://hooks", resource="urn:r", authMethod=method
        )
        context = replace(caller.context, version=version)
        await caller.task("go", asking(hook.url, "OAuth2", credentials), context=context)
        await hook.until_over()
        assert {told.headers["authorization"] for told in hook.told} == {"Bearer token-1"}
        [(form, headers)] = endpoint.asked
        expected = {
            "grant_type": "client_credentials",
            "scope": "hooks a",
            "audience": "https://hooks",
            "resource": "urn:r",
        }
        if method == "client_secret_post":
            assert form == {**expected, "client_id": "parley", "client_secret": SECRET}
            assert "authorization" not in headers
        else:
            assert form == expected
            given = base64.b64decode(headers["authorization"].removeprefix("Basic "))
            assert given == f"parley:{SECRET}".encode()


async def test_many_webhooks_wait_for_one_request() -> None:
    agent, gate = gated()
    gate.set()
    async with token_endpoint() as endpoint, webhook() as hook, pushing(agent) as caller:
        is_open = asyncio.Event()

        async def slow(request: web.Request) -> web.StreamResponse:
            await is_open.wait()
            return web.json_response({"access_token": "t", "token_type": "Bearer"})

        endpoint.answer = slow
        pushes = [asking(hook.url, "OAuth2", endpoint.credentials()) for _ in range(5)]
        await asyncio.gather(*(caller.task("go", push) for push in pushes))
        await until(lambda: len(endpoint.asked) == 1)
        assert hook.told == []
        is_open.set()
        await hook.until(lambda told: len({each.json["task"]["id"] for each in told
                                           if "task" in each.json}) == 5)  # fmt: skip
        assert len(endpoint.asked) == 1


async def test_a_token_is_renewed_before_it_expires() -> None:
    clock = Clock(1000.0)
    async with token_endpoint() as endpoint, webhook() as hook, pushing(writer(1)) as caller:
        egress = caller.host.push.egress
        _with(caller, Proofs(egress, monotonic=clock))
        endpoint.expires_in = 100
        for moved, expected in ((0.0, 1), (79.0, 1), (2.0, 2), (79.0, 2), (500.0, 3)):
            clock.now += moved
            hook.told.clear()
            await caller.task("go", asking(hook.url, "OAuth2", endpoint.credentials()))
            await hook.until_over()
            assert {told.headers["authorization"] for told in hook.told} == {
                f"Bearer token-{expected}"
            }
        assert len(endpoint.asked) == 3


async def test_an_old_token_is_used_while_it_is_valid_and_the_endpoint_is_down() -> None:
    clock = Clock(1000.0)
    async with webhook() as hook, pushing(writer(1)) as caller:
        _with(caller, Proofs(caller.host.push.egress, monotonic=clock))
        async with token_endpoint() as endpoint:
            endpoint.expires_in = 100
            push = asking(hook.url, "OAuth2", endpoint.credentials())
            await caller.task("go", push)
            await hook.until_over()
        clock.now += 90
        hook.told.clear()
        await caller.task("go", push)
        await hook.until_over()
        assert {told.headers["authorization"] for told in hook.told} == {"Bearer token-1"}


async def test_a_token_that_is_refused_is_renewed_at_once() -> None:
    async with token_endpoint() as endpoint, webhook() as hook, pushing(writer(1)) as caller:
        hook.answer = lambda told: 200 if told.headers["authorization"] == "Bearer token-2" else 401
        task = await caller.task("go", asking(hook.url, "OAuth2", endpoint.credentials()))
        await hook.until_over()
        await caller.settled(task.id, PushState.DONE)
        refused, *accepted = hook.told
        assert refused.headers["authorization"] == "Bearer token-1"
        assert refused.headers["webhook-id"] == accepted[0].headers["webhook-id"]
        assert refused.body == accepted[0].body
        assert len(endpoint.asked) == 2


async def test_a_webhook_that_refuses_every_token_costs_one_each_attempt() -> None:
    async with token_endpoint() as endpoint, webhook() as hook, pushing(writer(1)) as caller:
        hook.answer = lambda told: 401
        task = await caller.task("go", asking(hook.url, "OAuth2", endpoint.credentials()))
        push = await caller.settled(task.id, PushState.SUSPENDED)
        assert "401" in push.note
        attempts = len(hook.told) // 2  # each request is sent twice
        assert len(endpoint.asked) <= attempts + 1


async def test_nothing_is_sent_while_the_token_endpoint_is_down(no_pause: None) -> None:
    async with webhook() as hook:
        async with token_endpoint() as endpoint:
            credentials, port = (
                endpoint.credentials(),
                int(endpoint.url.split(":")[2].split("/")[0]),
            )
        async with pushing(writer(1), retry_policy=PATIENT) as caller:
            task = await caller.task("go", asking(hook.url, "OAuth2", credentials))
            await let_time_pass(0.1)
            assert hook.told == []
            async with token_endpoint(port):
                await hook.until_over()
            await caller.settled(task.id, PushState.DONE)
            assert {told.headers["authorization"] for told in hook.told} == {"Bearer token-1"}


def bytes_of(body: bytes, status: int = 200, **headers: str) -> Any:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (bytes_of(b'{"error":"invalid_client"}', 401), "answers with HTTP 401: invalid_client"),
        (bytes_of(b'{"error":"s3cr3t-of-client IS WRONG"}', 400), "answers with HTTP 400,"),
        (bytes_of(b"", 302, Location="https://example.com"), "answers with HTTP 302"),
        (bytes_of(b"nonsense"), "answers without an access token"),
        (bytes_of(b"[]"), "answers without an access token"),
        (bytes_of(b'{"access_token":"a\\nX: 1","token_type":"bearer"}'), "without an access"),
        (bytes_of(b'{"access_token":"a b","token_type":"bearer"}'), "without an access token"),
        (bytes_of(b'{"access_token":"","token_type":"bearer"}'), "without an access token"),
        (bytes_of(b'{"access_token":"a","token_type":"mac"}'), "not of the type Bearer"),
        (bytes_of(b'{"access_token":"a"}'), "not of the type Bearer"),
        (bytes_of(b" " * 70_000), "exceeds the limits"),
        (bytes_of(b'{"access_token":"' + b"a" * 20_000 + b'"}'), "without an access token"),
    ],
)
async def test_an_answer_without_a_token_is_a_failure_that_says_why(
    answer: Any, reason: str, no_pause: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with token_endpoint() as endpoint, webhook() as hook, pushing(writer(1)) as caller:
        endpoint.answer = answer
        task = await caller.task("go", asking(hook.url, "OAuth2", endpoint.credentials()))
        push = await caller.settled(task.id, PushState.SUSPENDED)
        assert reason in push.note
        assert hook.told == []
        assert SECRET not in push.note
    assert SECRET not in caplog.text


@pytest.mark.slow
async def test_a_token_endpoint_that_hangs_delays_no_other_webhook() -> None:
    hangs = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        await hangs.wait()
        return web.Response(status=500)

    policy = replace(PATIENT, timeout=0.5)
    async with (
        token_endpoint() as endpoint,
        webhook() as hook,
        pushing(writer(1), retry_policy=policy) as caller,
    ):
        endpoint.answer = answer
        await caller.task("go", asking(hook.url, "OAuth2", endpoint.credentials()))
        await until(lambda: bool(endpoint.asked))
        task = await caller.task("go", asking(hook.url, "Bearer", "x"))
        await hook.until_over()
        assert {told.headers["authorization"] for told in hook.told} == {"Bearer x"}
        await caller.settled(task.id, PushState.DONE)
        endpoint.answer = None  # the hanging request is abandoned and repeated
        hangs.set()
        await hook.until(
            lambda told: any(each.headers["authorization"].startswith("Bearer t") for each in told)
        )


async def test_callers_do_not_share_tokens() -> None:
    agent, gate = gated()
    gate.set()
    async with token_endpoint() as endpoint, webhook() as hook, pushing(agent) as caller:
        for id in ("ada", "eve", "ada"):
            hook.told.clear()
            context = replace(caller.context, caller=Caller(id=id))
            push = asking(hook.url, "OAuth2", endpoint.credentials())
            assert isinstance(await caller.send("go", push, context=context), Task)
            await hook.until_over()
            expected = "Bearer token-2" if id == "eve" else "Bearer token-1"
            assert {told.headers["authorization"] for told in hook.told} == {expected}


class Inside:
    """A resolver that resolves every name to a loopback address."""

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        address = {"host": "127.0.0.1", "port": port, "family": socket.AF_INET}
        return [{"hostname": host, "proto": 0, "flags": 0, **address}]


async def test_a_token_endpoint_is_called_through_the_guard(no_pause: None) -> None:
    """A name that resolves to the internal network passes the first check and fails the second."""
    async with (
        token_endpoint() as endpoint,
        webhook() as hook,
        pushing(writer(1), allowed=["localhost"]) as caller,
    ):
        caller.host.push._sender._resolver = Inside()  # type: ignore[assignment]
        url = endpoint.url.replace("http://127.0.0.1", "https://id.example.com")
        credentials = endpoint.credentials(tokenUrl=url)
        push = asking(hook.url.replace("127.0.0.1", "localhost"), "OAuth2", credentials)
        task = await caller.task("go", push)
        stored = await caller.settled(task.id, PushState.SUSPENDED)
        assert "is at a loopback address" in stored.note
        assert endpoint.asked == hook.told == []


async def test_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.push.proofs.MAX_TOKENS", 6)
    monkeypatch.setattr("parley.push.proofs.MAX_TOKENS_PER_CALLER", 4)
    proofs = Proofs(Egress())
    kept = proofs._tokens
    for caller, count in (("ada", 9), ("eve", 1), ("bob", 1), ("cyd", 1)):
        for number in range(count):
            token = kept.of(_attempt(caller, number))
            assert isinstance(token, ClientToken)
            assert SECRET not in repr(token)
    assert {caller: len(tokens) for caller, tokens in kept._tokens.items()} == {
        "ada": 3, "eve": 1, "bob": 1, "cyd": 1,
    }  # fmt: skip


def _attempt(caller: str, number: int) -> Any:
    from parley.push.proofs import WebhookAttempt
    from parley.store.protocols.webhooks import PushRecord

    credentials = (
        f'{{"tokenUrl":"https://id.example/{number}","clientId":"a","clientSecret":"{SECRET}"}}'
    )
    push = PushRecord(
        config=asking("https://a.example", "OAuth2", credentials), version="1.0", revision="1"
    )
    return WebhookAttempt(push, b"", "id", 1, "", caller, lambda host: None)  # type: ignore[arg-type, return-value]


def _with(caller: Any, proofs: Proofs) -> None:
    """Replace the server's credentials."""
    caller.host.push.proofs = proofs
    caller.host.push._sender.proofs = proofs
