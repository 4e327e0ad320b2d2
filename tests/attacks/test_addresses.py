"""Indirect ways to a protected agent: neighbours, other spellings, batches, tenants."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

import parley
from parley import Agent, Turn
from parley.model.errors import A2AError, PermissionDeniedError, UnauthenticatedError
from parley.model.service import Caller
from parley.security import Bearer
from parley.server.run import serving
from parley.server.settings import GrpcOptions, Settings
from tests.contract.conftest import Speech, reach
from tests.kit.http import JSON, ask

pytestmark = pytest.mark.anyio

BANK, SHOP = "token-of-the-bank", "token-of-the-shop"
RUNS: list[str] = []


def agent(name: str, security: Any = None) -> Agent:
    made = Agent(name, security=security)

    @made.skill(replies="task")
    async def run(turn: Turn) -> str:
        RUNS.append(name)
        return "ran"

    return made


def agents() -> dict[str, Agent]:
    """Return four agents: one is public, two are protected, and one protects some skills."""
    half = Agent("Half")
    token = Bearer({BANK: Caller(id="ada")}.get)

    @half.skill(replies="task")
    async def open_to_all(turn: Turn) -> str:
        return "ran"

    @half.skill(replies="task", security=token)
    async def protected(turn: Turn) -> str:
        RUNS.append("half")
        return "ran"

    return {
        "open": agent("open"),
        "bank": agent("bank", Bearer({BANK: Caller(id="ada")}.get)),
        "shop": agent("shop", Bearer({SHOP: Caller(id="ada")}.get)),
        "half": half,
    }


class Town(NamedTuple):
    """Servers of the same agents: as tenants of one address, and each at its own path."""

    tenants: str
    paths: str


@pytest.fixture(scope="module")
async def town() -> AsyncIterator[Town]:
    settings = Settings(auth_failures_per_minute=0)
    tenants = parley.asgi(tenants=agents(), drain=0.0, settings=settings)
    paths = {f"/{name}": each for name, each in agents().items()}
    apart = parley.asgi(paths, drain=0.0, settings=settings)
    async with (
        serving(tenants, grpc=GrpcOptions(port=0)) as first,
        serving(apart, grpc=GrpcOptions(port=0)) as second,
    ):
        yield Town(first, second)


@pytest.fixture(autouse=True)
def nothing_ran() -> Any:
    RUNS.clear()
    yield
    assert RUNS == []


def message(**more: Any) -> dict[str, Any]:
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    return {"message": said, **more}


def call(method: str = "SendMessage", **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": message(**more)}


HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": f"Bearer {SHOP}"},
    {"Authorization": "Bearer made-up"},
    {"Authorization": f"Bearer {SHOP}, Bearer {BANK}"},
    {"Authorization": f"bearer\t{BANK}x"},
    {"X-Forwarded-Authorization": f"Bearer {BANK}"},
    {"Proxy-Authorization": f"Bearer {BANK}"},
    {"Cookie": f"Authorization=Bearer {BANK}"},
)
REQUESTS: tuple[tuple[str, Any], ...] = (
    ("/", call(tenant="bank")),
    ("/open", call(tenant="bank")),
    ("/bank", call(tenant="open")),
    ("/bank", call()),
    ("/bank/", call()),
    ("//bank", call()),
    ("/%62ank", call()),
    ("/open/../bank", call()),
    ("/open/%2e%2e/bank", call()),
    ("/open%2F..%2Fbank", call()),
    ("/bank?access_token=" + BANK, call()),
    ("/bank?Authorization=Bearer%20" + BANK, call()),
    ("/", [call(tenant="open"), call(tenant="bank")]),
    ("/open", [call(), call(tenant="bank")]),
    ("/bank", [call(), call()]),
    ("/bank", call("message/send")),
    ("/bank/message:send", message()),
    ("/bank/message:send", message(tenant="open")),
    ("/open/message:send", message(tenant="bank")),
    ("/message:send", message(tenant="bank")),
    ("/open/bank/message:send", message()),
    ("/bank/message%3Asend", message()),
    ("/bank/v1/message:send", message()),
    ("/%62ank/message:send", message()),
    ("/open/../bank/message:send", message()),
    ("/open/%2e%2e/bank/message:send", message()),
    ("/BANK/message:send", message()),
    ("/a2a/bank/message:send", message()),
    ("/a2a/bank", call()),
    ("/bank/message:send?access_token=" + BANK, message()),
)


@pytest.mark.parametrize("headers", HEADERS, ids=lambda headers: " ".join(headers) or "none")
async def test_no_way_round_leads_to_the_bank(town: Town, headers: dict[str, str]) -> None:
    for url in town:
        for path, content in REQUESTS:
            for version in ("1.0", "0.3"):
                given = {**JSON, "A2A-Version": version, **headers}
                answer = await ask(url, "POST", path, json.dumps(content).encode(), given)
                # The public agent may have answered; its runs do not count.
                RUNS[:] = [name for name in RUNS if name != "open"]
                if "shop" not in path:
                    assert RUNS == [], (path, version, answer.body)


@pytest.mark.parametrize("token", ["", SHOP, "made-up"])
async def test_a_tenant_is_reached_with_its_own_credentials_alone(
    town: Town, speech: Speech, token: str
) -> None:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    if speech.way == ("GRPC", "0.3"):
        pytest.skip("it names no tenant")
    async with reach([town.tenants], speech, path="/bank", headers=headers) as remote:
        with pytest.raises(A2AError) as caught:
            await remote.send("hi")
    assert isinstance(caught.value, UnauthenticatedError | PermissionDeniedError)


async def test_a_skill_that_is_protected_is_reached_by_no_name(town: Town, speech: Speech) -> None:
    if speech.way == ("GRPC", "0.3"):
        pytest.skip("it cannot name one of several agents")
    async with reach([town.paths], speech, path="/half") as remote:
        for more in (
            {"metadata": {"skill": "protected"}},
            {"metadata": {"skillId": "protected", "skill": "protected"}},
        ):
            with pytest.raises(UnauthenticatedError):
                await remote.send("hi", **more)
