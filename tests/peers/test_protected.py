"""Official clients of other languages call a protected agent, with tokens of an issuer."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

import parley
from parley import Agent, Turn
from parley.security import OpenIdConnect
from parley.server.grpc.options import grpc_options
from parley.server.run import serving
from parley.server.settings import Settings
from parley.testing import Issuer

from .conftest import Processes, case, command_of
from .environments import JDK, NotMade, command
from .official_caller import Official, Refused, official_process, request

pytestmark = pytest.mark.anyio

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
CLIENTS = [
    case(peer, binding, version)
    for peer in ("python-1.3", "js-1.3", "go-2.4")
    for binding in BINDINGS
    for version in ("1.0", "0.3")
] + [case("python-0.3", binding, "0.3") for binding in BINDINGS]
NAMED = re.compile(r"401|[Uu]nauthenticated|UNAUTHENTICATED|credentials")
OLD = [case("js-0.3", "JSONRPC", "0.3")]


class Bank(NamedTuple):
    url: str
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
        async with serving(app, grpc=grpc_options(0)) as url:
            yield Bank(url, issuer, runs)


def text_of(answer: Any) -> str:
    """Return the text of all artifacts of a task, in whichever version."""
    task = answer.get("task", answer)
    return "".join(part["text"] for each in task["artifacts"] for part in each["parts"])


def said(version_of_process: str) -> dict[str, Any]:
    """Return a request as the peer's program takes it."""
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
    official = Official(peer, await official_clients(peer), bank.url, binding, version)
    answer = await official.call("send", said(peer), bank.headers())
    assert text_of(answer) == "you are ada"
    before = len(bank.runs)
    for headers in ({}, bank.headers(audience="hotel"), bank.headers(forged=True)):
        for do in ("send", "stream"):
            with pytest.raises(Refused) as caught:
                await official.call(do, said(peer), headers)
            assert NAMED.search(str(caught.value)), caught.value
    assert len(bank.runs) == before
