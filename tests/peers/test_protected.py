"""Official clients of other languages call a protected agent, with an issuer's tokens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import parley
from parley import Agent, Turn
from parley.conformance.background_server import BackgroundServer
from parley.security import OpenIdConnect
from parley.server.run import serving
from parley.server.settings import Settings, grpc_options
from parley.testing import Issuer

from .conftest import Processes, case
from .environments import JDK, NotMade, command
from .official_caller import Official, Refused, official_process, request

pytestmark = pytest.mark.anyio

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
CLIENTS = [
    case(peer, binding, version)
    for peer in ("python-1.3", "js-1.3", "go-2.4")
    for binding in BINDINGS
    for version in ("1.0", "0.3")
] + [
    case("python-0.3", binding, "0.3") for binding in BINDINGS[:2]
]  # over gRPC it sends no headers
NAMED = re.compile(
    r"401|UNAUTHENTICATED|credentials are required|another audience|the token is not accepted"
    # The Python client of 0.3 checks the media type of a stream before its status.
    r"|Invalid SSE response"
)
OLD = [case("js-0.3", "JSONRPC", "0.3")]


class Bank(NamedTuple):
    """A protected agent, its address for the Go SDK, its issuer, and its executed requests."""

    url: str
    card_for_go: str
    issuer: Issuer
    runs: list[str]

    def headers(self, **wrong: Any) -> dict[str, str]:
        return {"authorization": f"Bearer {self.issuer.token('ada', **wrong)}"}


@pytest.fixture(scope="module")
async def bank() -> AsyncIterator[Bank]:
    """A protected agent, and the issuer of its tokens."""
    runs: list[str] = []
    async with Issuer(audience="bank") as issuer:
        agent = Agent("Bank", security=OpenIdConnect(issuer.url, audience="bank"))

        @agent.skill(replies="task")
        async def whoami(turn: Turn) -> str:
            runs.append(turn.text)
            return f"you are {turn.caller.id}"

        app = parley.asgi(agent, drain=0.0, settings=Settings(auth_failures_per_minute=0))
        async with serving(app, grpc=grpc_options(0)) as url, card_for_go(url) as go:
            yield Bank(url, go, issuer, runs)


@asynccontextmanager
async def card_for_go(url: str) -> AsyncIterator[str]:
    """Serve the agent's card for the Go SDK (2.4), which fails at scopes in an object.

    A program with that SDK can do the same in the ``CardParser`` of its resolver.
    """

    async def card(request: Request) -> Response:
        async with aiohttp.ClientSession() as http, http.get(url + request.url.path) as answer:
            text = await answer.text()
        content = re.sub(
            r'\{"list":(\[[^]]*\])\}', r"\1", text.replace('"openid":{}', '"openid":[]')
        )
        return Response(content, media_type="application/json")

    app = Starlette(routes=[Route("/.well-known/agent-card.json", card)])
    server = BackgroundServer(app)
    try:
        await asyncio.to_thread(server.start)
        yield server.url
    finally:
        await asyncio.to_thread(server.stop)


def text_of(answer: Any) -> str:
    """Return the text of all artifacts of a task, in either version."""
    task = answer.get("task", answer)
    return "".join(part["text"] for each in task["artifacts"] for part in each["parts"])


def said(version_of_process: str) -> dict[str, Any]:
    """Return a request in the form of the peer's program."""
    made = request("whoami am I")
    if version_of_process == "python-0.3" or version_of_process == "js-0.3":
        parts = [{"kind": "text", "text": "whoami am I"}]
        made["message"] |= {"kind": "message", "role": "user", "parts": parts}
        made["configuration"] = {"blocking": True}
    return made


@pytest.mark.parametrize("client", [*CLIENTS, *OLD], ids=" ".join)
async def test_an_official_client_is_let_in_with_a_token_and_not_without(
    bank: Bank, official_clients: Processes, client: tuple[str, str, str]
) -> None:
    peer, binding, version = client
    url = bank.card_for_go if peer == "go-2.4" else bank.url
    official = Official(peer, await official_clients(peer), url, binding, version)
    answer = await official.call("send", said(peer), bank.headers())
    assert text_of(answer) == "you are ada"
    before = len(bank.runs)
    for headers in ({}, bank.headers(audience="hotel"), bank.headers(forged=True)):
        for do in ("send", "stream"):
            with pytest.raises(Refused) as caught:
                await official.call(do, said(peer), headers)
            assert NAMED.search(str(caught.value)), caught.value
    assert len(bank.runs) == before


@pytest.mark.may_be_missing
@pytest.mark.parametrize("binding", BINDINGS[:2])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_http_client_of_the_jdk_is_let_in_with_a_token(
    bank: Bank, binding: str, version: str
) -> None:
    try:
        words = command(JDK, "clients/JdkHttpClient.java")
    except NotMade as error:
        pytest.skip(str(error))
    async with official_process(words, 60) as process:

        async def does(headers: dict[str, str]) -> Any:
            asked = {"binding": binding, "version": version, "headers": headers}
            asked |= {"do": "message", "url": bank.url, "texts": ["whoami am I"]}
            return [item async for item in process.items(asked)]

        [answer] = await does(bank.headers())
        assert answer["text"] == "you are ada"
        before = len(bank.runs)
        for headers in ({}, bank.headers(audience="hotel"), bank.headers(forged=True)):
            with pytest.raises(Refused, match="401"):
                await does(headers)
        assert len(bank.runs) == before
